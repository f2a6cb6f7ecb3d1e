"""FlexMatch's step against its definition in plain Python, and against FixMatch where the two must agree."""

import math
from collections import Counter

import pytest
import torch
from logits_as_images import STRONG, WEAK, X, Y, make_batch, make_transparent, mean_cross_entropy, softmax

from npmatch.algorithms.check import check_algorithm
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.flexmatch import FlexMatch


@pytest.mark.parametrize("weak_norm", ["joint", "own", "running"])
def test_it_passes_all_checks(weak_norm):
    assert check_algorithm(FlexMatch, FlexMatch.Config(confidence=0.3, weak_norm=weak_norm)) is None


def test_three_steps_are_the_papers_algorithm_with_loops_and_row_selection():
    algorithm = make_transparent(FlexMatch, confidence=0.7)
    last: dict[int, int] = {}  # image → class last predicted above τ
    kept_counts = []
    for turn in range(3):
        weak = WEAK[turn:] + WEAK[:turn]  # another view of each image in every step
        counts = Counter(last.values())
        largest = max([len(WEAK) - len(last), *counts.values()])
        total, kept = 0.0, []
        for image, (row, strong) in enumerate(zip(weak, STRONG, strict=True)):
            q = softmax(row)
            c = q.index(max(q))
            beta = counts[c] / largest
            kept.append(max(q) > 0.7 * beta / (2 - beta))
            total += -math.log(softmax(strong)[c]) if kept[-1] else 0.0
            if max(q) > 0.7:
                last[image] = c
        step = algorithm.loss(make_batch(X, Y, weak, STRONG), torch.tensor(0.0))
        assert step.keep.tolist() == kept
        assert algorithm.curriculum.assigned.tolist() == [last.get(image, 3) for image in range(6)]  # 3: unused
        assert step.loss.item() == pytest.approx(mean_cross_entropy(X, Y) + total / len(WEAK), rel=1e-5)
        kept_counts.append(sum(kept))
    assert kept_counts[0] == len(WEAK), "all thresholds start at 0"
    assert kept_counts[-1] < len(WEAK), "they must have risen"


def test_it_is_fixmatch_once_all_classes_are_learnt():
    flex, fix = (make_transparent(cls, confidence=0.9) for cls in (FlexMatch, FixMatch))
    flex.curriculum.update(torch.arange(6), torch.arange(6) % 3, torch.ones(6, dtype=torch.bool))
    batch = make_batch(X, Y, WEAK, STRONG)
    one, other = flex.loss(batch, torch.tensor(0.0)), fix.loss(batch, torch.tensor(0.0))
    assert 0 < one.keep.sum() < len(one.keep)
    assert torch.equal(one.keep, other.keep)
    assert torch.equal(one.loss, other.loss)
