"""Two and three ranks against one process with the same global batch: the number of ranks changes no result."""

from functools import cache

import pytest
import torch
from rank_worker import CASES, STEPS, train_cases

from npmatch.training import load_tensors
from starting import run_together

WORLDS = {0: 1, 2: 2, 3: 3}  # 0: one process without a process group


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(case, world, rank) → that rank's logs and final state; each world is started once for all cases."""
    folder = tmp_path_factory.mktemp("ranks")

    @cache
    def start(worlds: tuple[int, ...]) -> None:
        run_together(train_cases, [(rank, world, folder) for world in worlds for rank in range(WORLDS[world])])

    def outcome(case, world, rank):
        start((0, 2) if world < 3 else (3,))
        return load_tensors(folder / f"{case}-{world}-{rank}.safetensors")[0]

    return outcome


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", sorted(CASES))
def test_ranks_agree_with_one_process(outcomes, case, world):
    alone = outcomes(case, 0, 0)
    assert len(alone["log/loss"]) == STEPS
    first = outcomes(case, world, 0)
    for name, expected in alone.items():
        if expected.is_floating_point():
            torch.testing.assert_close(first[name], expected, rtol=1e-6, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
        else:  # curriculum, positions of banks
            assert torch.equal(first[name], expected), name
    for rank in range(1, world):  # all ranks are equal to rank zero, to the bit
        other = outcomes(case, world, rank)
        different = [name for name in first if not torch.equal(first[name], other[name])]
        assert not different


def test_the_cases_trust_some_images_and_not_others(outcomes):
    """Shows that the curricula compared above are not empty."""
    fixed = ("npmatch-js", "npmatch-js_dual", "npmatch-kl", "fixmatch", "uda", "comatch", "semco", "defixmatch")
    adaptive = ("freematch", "softmatch", "adamatch", "adamatch-own", "dash", "npmatch-freematch", "npmatch-softmatch")
    for case in (*fixed, *adaptive):
        trusted = outcomes(case, 0, 0)["log/trusted"]
        assert 0.02 < trusted.mean() < 0.98, (case, trusted)
    counts = outcomes("flexmatch", 0, 0)["state/curriculum.counts"]
    assert 0 < counts[-1] < counts.sum()
