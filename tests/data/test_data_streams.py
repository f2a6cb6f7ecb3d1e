"""The sampler as a pure function of (seed, step); resident and fetched streams, and errors in worker processes."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.data import (
    Dataset,
    FileImages,
    RawBatch,
    Sampler,
    Stream,
    iterate_images,
    make_split,
    make_stream,
)
from npmatch.data.loading import default_workers
from npmatch.data.streams import FetchedStream, ResidentStream, free_memory
from npmatch.errors import NPMatchError


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**60), st.integers(1, 50), st.integers(1, 50), st.data())
def test_each_epoch_is_a_pass_over_the_set(seed: int, labeled: int, unlabeled: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, unlabeled))
    sampler = Sampler(seed, labeled, unlabeled, 4, batch)
    steps = unlabeled // batch
    for epoch in range(3):
        batches = [sampler(epoch * steps + place) for place in range(steps)]
        seen = [index for _, u in batches for index in u.tolist()]
        assert len(seen) == len(set(seen)) == steps * batch  # the whole set if the batch size divides it
        assert set(seen) <= set(range(unlabeled))
        for x, u in batches:
            assert x.shape == (4,)
            assert u.shape == (batch,)
            assert x.dtype == u.dtype == torch.int64
            assert 0 <= x.min() <= x.max() < labeled


def test_a_step_draws_the_same_in_any_process_and_order() -> None:
    in_order = Sampler(7, 10, 64, 8, 16)
    expected = [in_order(step) for step in range(40)]
    other = Sampler(7, 10, 64, 8, 16)
    for step in random.Random(0).sample(range(40), 40):
        assert all(torch.equal(a, b) for a, b in zip(other(step), expected[step], strict=True))


def test_changing_a_batch_does_not_change_later_ones() -> None:
    sampler = Sampler(0, 4, 8, 2, 4)
    expected = sampler(0)[1].clone()
    sampler(0)[1].zero_()
    assert torch.equal(sampler(0)[1], expected)


def test_seeds_epochs_and_streams_differ() -> None:
    first, second = Sampler(0, 100, 1000, 32, 500), Sampler(1, 100, 1000, 32, 500)
    assert not torch.equal(first(0)[0], second(0)[0])
    assert not torch.equal(first(0)[1], second(0)[1])
    assert not torch.equal(first(0)[0], first(1)[0])
    assert not torch.equal(first(0)[1], first(2)[1])  # the same place of the next epoch
    # The order of one sampler's unlabelled images does not depend on the labelled set, nor the reverse.
    other = Sampler(0, 7, 1000, 64, 500)
    assert torch.equal(first(5)[1], other(5)[1])


def test_labelled_images_are_drawn_evenly_and_with_replacement() -> None:
    sampler = Sampler(0, 10, 10, 64, 1)
    times = Counter(index for step in range(500) for index in sampler(step)[0].tolist())
    # 32,000 draws of 10: each expected 3,200 times, with a deviation of about 54.
    assert max(abs(times[index] - 3200) for index in range(10)) < 300


def test_empty_sets_and_batches() -> None:
    x, u = Sampler(0, 4, 0, 2, 0)(123)
    assert x.shape == (2,)
    assert u.shape == (0,)
    assert u.dtype == torch.int64
    assert Sampler(0, 0, 4, 0, 4)(3)[0].shape == (0,)
    with pytest.raises(NPMatchError, match=r"batch of 9 .* set of 8; lower training\.unlabeled_ratio or training"):
        Sampler(0, 4, 8, 2, 9)
    with pytest.raises(NPMatchError, match="no labelled image"):
        Sampler(0, 0, 8, 2, 4)


def stream_of(dataset: Dataset, unlabeled: int = 12, **options: object) -> Stream:
    split = make_split(dataset, 9, seed=0, validation=0.2)
    sampler = Sampler(3, len(split.labeled), len(split.unlabeled), 6, unlabeled)
    return make_stream(dataset, split, sampler, "cpu", **options)


def assert_equal(batches: list[RawBatch], others: list[RawBatch]) -> None:
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(batch, other, strict=True))


def test_batches_have_the_images_that_the_sampler_draws(memory_dataset: Dataset) -> None:
    train = memory_dataset.train
    split = make_split(memory_dataset, 9, seed=0, validation=0.2)
    sampler = Sampler(3, len(split.labeled), len(split.unlabeled), 6, 12)
    held_out = {train.images.pixels[index].numpy().tobytes() for index in split.validation.tolist()}
    batches = list(make_stream(memory_dataset, split, sampler, "cpu").batches(5, 20))
    assert len(batches) == 15
    for step, batch in enumerate(batches, start=5):
        b, index = sampler(step)
        assert torch.equal(batch.index, index)
        assert torch.equal(batch.labeled, b)
        for row in range(6):
            image = split.labeled[b[row]]
            assert torch.equal(batch.x[row], train.images.pixels[image])
            assert batch.y[row] == train.labels[image]
        for row in range(12):
            assert torch.equal(batch.u[row], train.images.pixels[split.unlabeled[index[row]]])
            assert batch.u[row].numpy().tobytes() not in held_out


@pytest.mark.parametrize("unlabeled", [12, 0])
def test_resident_and_fetched_are_equal(memory_dataset: Dataset, file_dataset: Dataset, unlabeled: int) -> None:
    expected = list(stream_of(memory_dataset, unlabeled, resident="always").batches(3, 9))
    assert expected[0].u.shape == (unlabeled, 3, 8, 8)
    assert expected[0].index.shape == (unlabeled,)
    for dataset in (memory_dataset, file_dataset):
        for resident in ("always", "never", "auto"):
            for workers in (0, 2):
                stream = stream_of(dataset, unlabeled, resident=resident, workers=workers)
                assert_equal(list(stream.batches(3, 9)), expected)


def test_a_stream_continues_at_any_step(file_dataset: Dataset) -> None:
    stream = stream_of(file_dataset, resident="never")
    whole = list(stream.batches(0, 6))
    assert_equal(list(stream.batches(0, 2)) + list(stream.batches(2, 6)), whole)
    assert list(stream.batches(4, 4)) == []
    interrupted = stream.batches(0, 1000)
    next(interrupted)
    interrupted.close()  # this ends the workers too


def test_free_memory_decides_whether_images_are_resident(memory_dataset: Dataset, file_dataset: Dataset) -> None:
    assert isinstance(stream_of(file_dataset), ResidentStream)
    assert isinstance(stream_of(file_dataset, memory_share=0.0), FetchedStream)
    assert isinstance(stream_of(file_dataset, memory_share=0.0, resident="always"), ResidentStream)
    assert isinstance(stream_of(file_dataset, resident="never"), FetchedStream)
    in_place = stream_of(memory_dataset, memory_share=0.0)
    assert isinstance(in_place, ResidentStream)
    assert in_place.pixels.data_ptr() == memory_dataset.train.images.pixels.data_ptr()  # not a copy
    assert 2**20 < free_memory(torch.device("cpu")) < 2**50


def test_local_ranks_share_the_memory(monkeypatch):
    monkeypatch.setattr("npmatch.data.streams._machine_memory", lambda: 800)
    assert free_memory(torch.device("cpu")) == 800
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # set by torchrun
    assert free_memory(torch.device("cpu")) == 200


def test_the_default_number_of_workers(file_dataset: Dataset) -> None:
    assert 1 <= default_workers() <= 16
    assert stream_of(file_dataset, resident="never").workers == default_workers()
    assert stream_of(file_dataset, resident="never", workers=0).workers == 0


def test_supervised_training_decodes_only_labelled_images(file_dataset: Dataset) -> None:
    stream = stream_of(file_dataset, unlabeled=0, resident="always")
    assert isinstance(stream, ResidentStream)
    assert len(stream.pixels) == 9


def test_labels_of_unlabelled_images_are_not_used(memory_dataset: Dataset) -> None:
    split = make_split(memory_dataset, 9, seed=0)
    sampler = Sampler(3, 9, 60, 6, 12)
    before = list(make_stream(memory_dataset, split, sampler, "cpu").batches(0, 5))
    hidden = torch.ones(60, dtype=torch.bool)
    hidden[split.labeled] = False
    memory_dataset.train.labels[hidden] = 2
    assert_equal(list(make_stream(memory_dataset, split, sampler, "cpu").batches(0, 5)), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named_by_a_worker_process(file_dataset: Dataset, workers: int) -> None:
    store = file_dataset.train.images
    assert isinstance(store, FileImages)
    victim = store.path(50)  # unlabelled, so it is in the unlabelled set
    victim.write_bytes(b"")

    def fails(run: object) -> None:
        with pytest.raises(NPMatchError) as caught:
            list(run()) if callable(run) else None
        assert str(caught.value).startswith(f"{victim}: not a readable image")
        assert "\n" not in str(caught.value)

    fails(lambda: stream_of(file_dataset, resident="never", workers=workers).batches(0, 10))
    fails(lambda: stream_of(file_dataset, resident="always", workers=workers).batches(0, 10))
    fails(lambda: iterate_images(store, 7, workers))


def test_the_object_that_workers_get_can_be_pickled(file_dataset: Dataset) -> None:
    stream = stream_of(file_dataset, resident="never")  # it is pickled if workers are not forked
    assert isinstance(stream, FetchedStream)
    copy = pickle.loads(pickle.dumps(stream.steps))
    assert_equal([copy(4)], [stream.steps(4)])


@pytest.mark.gpu
def test_streams_on_a_gpu(memory_dataset: Dataset, file_dataset: Dataset, tmp_path: Path) -> None:
    split = make_split(memory_dataset, 9, seed=0)
    sampler = Sampler(3, 9, 60, 6, 12)
    expected = list(make_stream(memory_dataset, split, sampler, "cpu").batches(0, 12))
    for dataset in (memory_dataset, file_dataset):
        for resident in ("always", "never", "auto"):
            batches = list(make_stream(dataset, split, sampler, "cuda", resident).batches(0, 12))
            assert all(part.is_cuda for batch in batches for part in batch)
            assert_equal([batch.to(torch.device("cpu")) for batch in batches], expected)
