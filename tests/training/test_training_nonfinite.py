"""A step that is not finite changes no tensor of the state, for every algorithm."""

import copy

import pytest
import torch

from bad_steps import poisoned, train_poisoned
from npmatch.algorithms import ALGORITHMS, NPMatch
from npmatch.algorithms.check import make_algorithm, make_batch
from npmatch.errors import NPMatchError
from npmatch.runs.folder import RunFolder
from npmatch.training import TrainingConfig, Update, load_tensors
from tiny import train_tiny

NAN = float("nan")


def set_up(name):
    algorithm = make_algorithm(ALGORITHMS[name])
    return algorithm, Update(algorithm, TrainingConfig(clip=3.0, ema=0.9))


def take(algorithm, update, batch, seed):
    torch.manual_seed(seed)
    update.begin(batch.index)
    step = algorithm.train_step(batch, torch.tensor(0.5), update)
    good = update.end(step)
    update.ema.update(good)
    return bool(good)


def state(algorithm, update):
    parts = {"algorithm": algorithm, "ema": update.ema, "momentum": update}
    return {f"{name}/{k}": v.clone() for name, part in parts.items() for k, v in part.state_dict().items()}


def poison_views(batch, view):
    bad = batch._replace(
        x=batch.x.clone(), weak=tuple(v.clone() for v in batch.weak), strong=tuple(v.clone() for v in batch.strong)
    )
    images = bad.x if view == "x" else (getattr(bad, view) or (None,))[-1]
    if images is None:
        pytest.skip("this algorithm has no such view")
    images[0, 0, 0, 0] = NAN
    return bad


@pytest.mark.parametrize("where", ["x", "weak", "strong", "first gradient", "last gradient"])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_bad_step_changes_nothing(name, where):
    algorithm, update = set_up(name)
    straight, straight_update = set_up(name)
    for seed in range(2):
        take(algorithm, update, make_batch(algorithm, seed), seed)
        take(straight, straight_update, make_batch(algorithm, seed), seed)
    before = state(algorithm, update)
    batch = make_batch(algorithm, 2)
    if "gradient" in where:  # of finite losses
        parameter = list(algorithm.parameters())[0 if where == "first gradient" else -1]
        handle = parameter.register_hook(lambda g: g * NAN)
        assert not take(algorithm, update, batch, 2)
        handle.remove()
    else:
        assert not take(algorithm, update, poison_views(batch, where), 2)
    after = state(algorithm, update)
    assert [k for k in before if not torch.equal(before[k], after[k])] == []
    assert update.bad_steps.read()[:2] == (1, 1)
    # No hidden state remains: the next step equals that of an algorithm that never had a bad step.
    assert take(algorithm, update, make_batch(algorithm, 3), 3)
    assert take(straight, straight_update, make_batch(algorithm, 3), 3)
    expected, found = state(straight, straight_update), state(algorithm, update)
    assert [k for k in expected if not torch.equal(expected[k], found[k])] == []


def test_without_begin_and_end_a_bad_step_does_change_buffers():
    """Shows that the test above can fail."""
    algorithm, update = set_up("npmatch")
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.train_step(poison_views(make_batch(algorithm, 0), "x"), torch.tensor(0.5), update)
    changed = [k for k, v in algorithm.state_dict().items() if not torch.equal(before[k], v)]
    assert any("running_mean" in k for k in changed)
    assert any("bank.rows" in k for k in changed)
    assert not any("weight" in k for k in changed), "the update itself protects the weights"


def test_norm_statistics_of_a_pass_without_gradient_are_restored_too():
    """Weak views in a pass of their own: their NaN reaches no loss, but would reach the running statistics."""
    algorithm = make_algorithm(NPMatch, NPMatch.Config(weak_norm="own", targets="trusted"))
    update = Update(algorithm, TrainingConfig())
    take(algorithm, update, make_batch(algorithm, 0), 0)
    before = state(algorithm, update)
    assert not take(algorithm, update, poison_views(make_batch(algorithm, 1), "weak"), 1)
    after = state(algorithm, update)
    assert [k for k in before if not torch.equal(before[k], after[k])] == []


@pytest.mark.parametrize(
    ("name", "value"), [("npmatch", NAN), ("npmatch", float("inf")), ("flexmatch", NAN), ("comatch", NAN), ("mpl", NAN)]
)
def test_a_run_goes_on_after_single_bad_steps_and_logs_them(tmp_path, name, value, capfd):
    run = train_poisoned(tmp_path / "run", {7, 11, 12}, value, algorithm=name)
    lines = {r["step"]: r.get("bad_steps") for r in run.records() if r["kind"] == "train"}
    assert lines == {5: None, 10: 1, 15: 2, 20: None, 24: None}
    assert "step 15: 2 of the steps since the last line were left out" in capfd.readouterr().err
    assert "error" in run.scores


def test_too_many_in_a_row_end_the_run_and_name_what_failed_first(tmp_path, monkeypatch):
    loss = NPMatch.loss

    def failing(self, batch, progress):
        step = loss(self, batch, progress)
        nan = torch.where(progress >= 16 / 24, NAN, 1.0)
        logs = {**step.logs, "divergence": step.logs["divergence"] * nan}
        return step._replace(loss=step.loss * nan, logs=logs)

    monkeypatch.setattr(NPMatch, "loss", failing)
    with pytest.raises(NPMatchError, match=r"divergence was not finite.* 4 steps in a row before step 20.*rate"):
        train_tiny(tmp_path / "run", training__max_bad_steps=3)
    tensors, scalars = load_tensors(sorted((tmp_path / "run" / "checkpoints").iterdir())[-1])
    assert scalars["step"] == 14
    assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())
    assert [r["step"] for r in RunFolder(tmp_path / "run").records() if r["kind"] == "train"] == [5, 10, 15]
    # With a higher limit the same run finishes, and its checkpoint after the bad steps is finite.
    run = train_tiny(tmp_path / "other", training__max_bad_steps=9)
    tensors, _ = load_tensors(sorted((run.folder / "checkpoints").iterdir())[-1])
    assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())


def test_a_non_finite_gradient_is_named():
    algorithm, update = set_up("fixmatch")
    next(iter(algorithm.parameters())).register_hook(lambda g: g * NAN)
    for seed in range(3):
        take(algorithm, update, make_batch(algorithm, seed), seed)
    assert update.bad_steps.read() == (3, 3, "the gradient")
    assert update.bad_steps.read() == (0, 0, "the gradient")
    assert int(update.bad_steps.counts["in_a_row"]) == 3


def test_bad_steps_are_counted_across_a_resume(tmp_path):
    from same_runs import same_run
    from tiny import stop_tiny

    with poisoned({5, 6, 12, 13}):
        straight = train_tiny(tmp_path / "straight")
        stop_tiny(tmp_path / "run", 9)
        resumed = train_tiny(tmp_path / "run", resume=True)
    assert same_run(straight.folder, resumed.folder)
    assert [r.get("bad_steps") for r in resumed.records() if r["kind"] == "train"] == [None, 2, 2, None, None]
