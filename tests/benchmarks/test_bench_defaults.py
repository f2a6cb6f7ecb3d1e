"""The benchmark of defaults compares what it says, and judges by images that were not learnt from."""

import torch

from benchmarks.defaults import QUESTIONS, bench_defaults, train
from npmatch.data import load_dataset


def test_every_variant_has_a_row_and_the_default_comes_first():
    questions = [question for question in QUESTIONS if question.data == "digits"]
    result = bench_defaults(seeds=2, share_of_steps=0.0, device="cpu", questions=questions)
    assert [(row["question"], row["value"]) for row in result.rows] == [
        (question.about, variant) for question in questions for variant in question.variants
    ]
    assert all(not next(iter(question.variants.values())) for question in QUESTIONS)
    assert all(0 <= row["error"] <= 100 and row["spread"] is not None for row in result.rows)


def test_test_images_do_not_count():
    digits = load_dataset("digits")
    first = train(digits, 40, 10, 10, {}, torch.device("cpu"))
    digits.test.labels.fill_(0)
    assert train(digits, 40, 10, 10, {}, torch.device("cpu")) == first
    assert first["n"] == len(digits.train) - 40
