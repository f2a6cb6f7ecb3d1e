"""`check_algorithm(MyAlgorithm)`: the checks that every algorithm must pass, a user's own too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from npmatch.algorithms.base import Algorithm
from npmatch.types import Batch, Step, Task

BATCH, RATIO, CLASSES, LABELED, IMAGES, SIDE = 6, 3, 4, 12, 40, 8
STARTS = 5  # initial weights that are tried until a gradient has reached every parameter


class TinyBackbone(nn.Module):
    """The smallest network with a batch norm."""

    num_features = 8

    def __init__(self) -> None:
        """One convolution and one batch norm."""
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        """N 1 H W → N 8."""
        out: Tensor = self.norm(self.conv(x)).relu()
        return out.mean((2, 3))


def check_algorithm(cls: type[Algorithm], config: Any = None) -> None:
    """Raises an AssertionError that names the promise that `cls` breaks, or returns silently."""
    for check in (
        _loss_is_finite_and_reaches_every_parameter,
        _state_survives_a_round_trip,
        _predictions_are_probabilities_of_each_image_alone,
        _step_with_nothing_trusted_is_finite,
        _same_seed_gives_the_same_step,
        _shapes_are_static_and_the_host_never_waits,
        _buffers_stay_where_they_are,
    ):
        with torch.random.fork_rng():
            check(lambda seed=0: make_algorithm(cls, config, seed))


def make_algorithm(cls: type[Algorithm], config: Any = None, seed: int = 0) -> Algorithm:
    """An instance on a tiny task, with the same weights every time that `seed` is the same."""
    torch.manual_seed(seed)
    task = Task(("cat", "dog", "frog", "ship"), num_labeled=LABELED, num_unlabeled=IMAGES)
    return cls(TinyBackbone(), task, config).train()


def make_batch(cls: Algorithm, seed: int = 0) -> Batch:
    """A batch of random images in the views that the algorithm needs."""
    g = torch.Generator().manual_seed(seed)

    def images(n: int) -> Tensor:
        return torch.randn(n, 1, SIDE, SIDE, generator=g)

    unlabeled = BATCH * RATIO
    return Batch(
        x=images(BATCH),
        y=torch.randint(CLASSES, (BATCH,), generator=g),
        weak=tuple(images(unlabeled) for _ in range(cls.views.weak)),
        strong=tuple(images(unlabeled) for _ in range(cls.views.strong)),
        index=torch.randperm(IMAGES, generator=g)[:unlabeled],
        labeled=torch.randint(LABELED, (BATCH,), generator=g),
        x_weak=tuple(images(BATCH) for _ in range(cls.views.labeled_weak)),
        x_strong=tuple(images(BATCH) for _ in range(cls.views.labeled_strong)),
    )


class _Descent:
    """A plain `update`: one small gradient step; records which parameters ever got a gradient."""

    def __init__(self, algorithm: nn.Module) -> None:
        self.algorithm = algorithm
        self.reached: set[str] = set()

    def __call__(self, loss: Tensor) -> None:
        self.algorithm.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, p in self.algorithm.named_parameters():
                if p.grad is not None:
                    assert p.grad.isfinite().all(), f"the gradient of {name} is not finite"
                    self.reached |= {name} if bool((p.grad != 0).any()) else set()
                    p.sub_(0.01 * p.grad)


def take_steps(algorithm: Algorithm, steps: range, update: Callable[[Tensor], None] | None = None) -> list[Step]:
    """Takes the steps numbered k in `steps`, each on its own batch and with seed k; returns their results."""
    update = update or _Descent(algorithm)
    taken = []
    for k in steps:
        torch.manual_seed(k)
        taken.append(algorithm.train_step(make_batch(algorithm, seed=k), torch.tensor(0.5), update))
    return taken


class Make(Protocol):
    """Makes the algorithm with initial weights that follow from `seed`."""

    def __call__(self, seed: int = 0) -> Algorithm: ...


def _loss_is_finite_and_reaches_every_parameter(make: Make) -> None:
    missed: set[str] = set()
    for start in range(STARTS):  # a threshold that no image passes at one start may keep a part of the network idle
        algorithm = make(start)
        update = _Descent(algorithm)
        for step in take_steps(algorithm, range(5), update):
            _is_finite_and_detached(step)
        left = {name for name, p in algorithm.named_parameters() if p.requires_grad} - update.reached
        missed = left if start == 0 else missed & left
        if not missed:
            return
    raise AssertionError(f"no gradient reaches {sorted(missed)}")


def _is_finite_and_detached(step: Step) -> None:
    assert step.loss.dim() == 0, "loss must be a 0-d tensor"
    for name, value in {"loss": step.loss, **step.logs}.items():
        assert value.dim() == 0, f"{name} must be a 0-d tensor"
        assert value.isfinite(), f"{name} must be finite"
        assert name == "loss" or not value.requires_grad, f"{name} must be detached"


def _state_survives_a_round_trip(make: Make) -> None:
    straight = make()
    take_steps(straight, range(3))
    saved = copy.deepcopy(straight.state_dict())
    take_steps(straight, range(3, 6))
    resumed = make()
    resumed.load_state_dict(saved)
    take_steps(resumed, range(3, 6))
    _assert_equal(straight.state_dict(), resumed.state_dict(), "after a save and a load training goes another way")


def _predictions_are_probabilities_of_each_image_alone(make: Make) -> None:
    algorithm = make()
    take_steps(algorithm, range(2))
    algorithm.eval()
    x = torch.randn(10, 1, SIDE, SIDE)
    with torch.no_grad():
        whole, again, alone = algorithm.predict(x), algorithm.predict(x), algorithm.predict(x[3:4])
    ones = torch.ones(10)
    assert whole.probs.shape == (10, CLASSES), f"probs must be N K, not {tuple(whole.probs.shape)}"
    assert whole.entropy.shape == (10,), f"entropy must be N, not {tuple(whole.entropy.shape)}"
    assert bool((whole.probs >= 0).all()), "probs must not be negative"
    assert torch.allclose(whole.probs.sum(-1), ones, atol=1e-5), "probs must sum to one"
    assert bool(whole.entropy.isfinite().all()), "entropy must be finite"
    assert torch.equal(whole.probs, again.probs), "a second call of predict gives another answer"
    assert torch.allclose(whole.probs[3:4], alone.probs, atol=1e-5), "a prediction depends on the other images"


def _step_with_nothing_trusted_is_finite(make: Make) -> None:
    algorithm = make()
    with torch.no_grad():  # all weights zero: every prediction is uniform, so no pseudo-label is confident
        for p in algorithm.parameters():
            p.zero_()
    for step in take_steps(algorithm, range(2)):
        assert bool(step.loss.isfinite()), "the loss is not finite where predictions are uniform"


def _same_seed_gives_the_same_step(make: Make) -> None:
    first, second = make(), make()
    take_steps(first, range(3))
    take_steps(second, range(3))
    _assert_equal(first.state_dict(), second.state_dict(), "two runs with one seed differ")


def _shapes_are_static_and_the_host_never_waits(make: Make) -> None:
    algorithm = make()
    with _no_host_reads():
        take_steps(algorithm, range(2), update=lambda loss: None)


def _buffers_stay_where_they_are(make: Make) -> None:
    algorithm = make()
    before = dict(algorithm.named_buffers())
    take_steps(algorithm, range(2))
    for name, buffer in algorithm.named_buffers():
        assert buffer is before.get(name), f"{name} must be changed in place (copy_, add_), not replaced"


def _assert_equal(first: dict[str, Tensor], second: dict[str, Tensor], complaint: str) -> None:
    assert first.keys() == second.keys(), complaint
    for name in first:
        assert torch.equal(first[name], second[name]), f"{complaint}: {name}"


class _HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that read a value from the device or whose result's shape depends on a value."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "bincount", "_unique2", "unique_dim")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, f"a step must not call {name}: it waits for the device; mask instead"
        if name in ("index", "index_put", "index_put_"):
            indices = [i for i in args[1] if i is not None]
            assert all(i.dtype != torch.bool for i in indices), "a step must not select rows by a mask; multiply by it"
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_host_reads() -> Iterator[None]:
    with _HostReads():  # type: ignore[no-untyped-call]
        yield
