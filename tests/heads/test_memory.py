"""The memory against a plain Python deque and explicit loops."""

import math
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.heads import LabeledMemory, Memory


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.lists(st.integers(1, 12), max_size=8), st.integers(0, 99))
def test_memory_is_a_fifo_of_pairs_and_survives_a_save(length, pushes, seed):
    g = torch.Generator().manual_seed(seed)
    memory, queue = Memory(length, 3, 2), deque(maxlen=length)
    for n in pushes:
        z, p = torch.randn(n, 3, generator=g), torch.rand(n, 2, generator=g)
        memory.push(z, p)
        queue.extend(zip(z.tolist(), p.tolist(), strict=True))
        restored = Memory(length, 3, 2)
        restored.load_state_dict(memory.state_dict())
        held = slice(0, min(int(restored.pushed), length))
        pairs = zip(restored.embeddings[held].tolist(), restored.probs[held].tolist(), strict=True)
        assert sorted(pairs) == sorted(queue)


def test_reading_weights_the_pairs_held_by_similarity():
    torch.manual_seed(0)
    memory = Memory(6, 3, 2)
    z, p, queries = torch.randn(4, 3), torch.rand(4, 2), torch.randn(5, 3)
    memory.push(z, p)  # two of six rows stay empty
    for query, probs in zip(queries.tolist(), memory.read(queries, 0.2).tolist(), strict=True):
        weights = [math.exp(sum(a * b for a, b in zip(query, row, strict=True)) / 0.2) for row in z.tolist()]
        for k in range(2):
            expected = sum(w * float(p[i, k]) for i, w in enumerate(weights)) / sum(weights)
            assert probs[k] == pytest.approx(expected, rel=1e-4)


def test_an_empty_memory_reads_as_zeros():
    assert Memory(6, 3, 2).read(torch.randn(5, 3), 0.2).tolist() == [[0, 0]] * 5


def test_labelled_images_that_were_not_written_have_no_weight():
    memory = LabeledMemory(4, 3, 2)
    memory.write(torch.tensor([2, 0]), torch.eye(3)[:2], torch.tensor([1, 0]), 0.7)
    weights = memory.similarity(torch.eye(3)[:1], 0.5).softmax(-1)
    e = math.exp(2)
    assert weights[0].tolist() == pytest.approx([1 / (1 + e), 0, e / (1 + e), 0], rel=1e-5)
    assert memory.held().tolist() == [True, False, True, False]


def test_of_several_views_of_a_labelled_image_the_first_is_written():
    memory = LabeledMemory(2, 2, 3)
    memory.write(
        torch.tensor([1, 1, 1]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([2] * 3), 0.7
    )
    assert memory.embeddings.tolist() == [[0, 0], [0, 1]]  # the first write has nothing to average with
    memory.write(torch.tensor([1]), torch.tensor([[1.0, 0.0]]), torch.tensor([2]), 0.7)
    assert memory.embeddings[1].tolist() == pytest.approx([0.3 / math.hypot(0.3, 0.7), 0.7 / math.hypot(0.3, 0.7)])


def test_a_labelled_memory_may_be_written_between_reading_and_the_gradient():
    memory = LabeledMemory(2, 2, 3)
    memory.write(torch.tensor([0, 1]), torch.eye(2), torch.tensor([0, 1]), 0.0)
    z = torch.tensor([[0.6, 0.8]], requires_grad=True)
    read = memory.similarity(z, 1.0)
    memory.write(torch.tensor([0]), torch.tensor([[0.0, 1.0]]), torch.tensor([0]), 0.0)
    read[0, 0].backward()
    assert z.grad.tolist() == [[1, 0]], "the gradient is that of the memory as it was read"
