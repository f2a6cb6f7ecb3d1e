"""Resident and fetched streams, loading in order, and errors that cross processes."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor

from npmatch.data import (
    Dataset,
    FileImages,
    ImageStore,
    RawBatch,
    Sampler,
    Stream,
    iterate_images,
    make_split,
    make_stream,
)
from npmatch.data.loading import SLOTS, copy_ahead, default_workers
from npmatch.data.streams import FetchedStream, ResidentStream, free_memory
from npmatch.errors import NPMatchError


def stream_of(dataset: Dataset, unlabeled: int = 12, **options: object) -> Stream:
    split = make_split(dataset, 9, seed=0, validation=0.2)
    sampler = Sampler(3, len(split.labeled), len(split.unlabeled), 6, unlabeled)
    return make_stream(dataset, split, sampler, "cpu", **options)


def assert_equal(batches: list[RawBatch], others: list[RawBatch]) -> None:
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(batch, other, strict=True))


def test_batches_are_what_the_sampler_says(memory_dataset: Dataset) -> None:
    train = memory_dataset.train
    split = make_split(memory_dataset, 9, seed=0, validation=0.2)
    sampler = Sampler(3, len(split.labeled), len(split.unlabeled), 6, 12)
    held_out = {train.images.pixels[index].numpy().tobytes() for index in split.validation.tolist()}
    batches = list(make_stream(memory_dataset, split, sampler, "cpu").batches(5, 20))
    assert len(batches) == 15
    for step, batch in enumerate(batches, start=5):
        b, index = sampler(step)
        assert torch.equal(batch.index, index)
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


def test_a_stream_goes_on_where_another_stopped(file_dataset: Dataset) -> None:
    stream = stream_of(file_dataset, resident="never")
    whole = list(stream.batches(0, 6))
    assert_equal(list(stream.batches(0, 2)) + list(stream.batches(2, 6)), whole)
    assert list(stream.batches(4, 4)) == []
    interrupted = stream.batches(0, 1000)
    next(interrupted)
    interrupted.close()  # and the workers end with it


def test_memory_decides(memory_dataset: Dataset, file_dataset: Dataset) -> None:
    assert isinstance(stream_of(file_dataset), ResidentStream)
    assert isinstance(stream_of(file_dataset, memory_share=0.0), FetchedStream)
    assert isinstance(stream_of(file_dataset, memory_share=0.0, resident="always"), ResidentStream)
    assert isinstance(stream_of(file_dataset, resident="never"), FetchedStream)
    in_place = stream_of(memory_dataset, memory_share=0.0)
    assert isinstance(in_place, ResidentStream)
    assert in_place.pixels.data_ptr() == memory_dataset.train.images.pixels.data_ptr()  # not a copy
    assert 2**20 < free_memory(torch.device("cpu")) < 2**50


def test_ranks_on_one_machine_share_its_memory_out(monkeypatch):
    monkeypatch.setattr("npmatch.data.streams._machine_memory", lambda: 800)
    assert free_memory(torch.device("cpu")) == 800
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # as torchrun tells it
    assert free_memory(torch.device("cpu")) == 200


def test_ranks_of_one_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npmatch.data.loading._cores", lambda: 24)
    found = []
    for ranks in ("1", "2", "64"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        found.append(default_workers())
    assert found == [16, 12, 1]


def test_workers_are_as_many_as_cores_unless_told(file_dataset: Dataset) -> None:
    assert 1 <= default_workers() <= 16
    assert stream_of(file_dataset, resident="never").workers == default_workers()
    assert stream_of(file_dataset, resident="never", workers=0).workers == 0


def test_supervised_training_decodes_labelled_images_alone(file_dataset: Dataset) -> None:
    stream = stream_of(file_dataset, unlabeled=0, resident="always")
    assert isinstance(stream, ResidentStream)
    assert len(stream.pixels) == 9


def test_labels_of_unlabelled_images_go_nowhere(memory_dataset: Dataset) -> None:
    split = make_split(memory_dataset, 9, seed=0)
    sampler = Sampler(3, 9, 60, 6, 12)
    before = list(make_stream(memory_dataset, split, sampler, "cpu").batches(0, 5))
    hidden = torch.ones(60, dtype=torch.bool)
    hidden[split.labeled] = False
    memory_dataset.train.labels[hidden] = 2
    assert_equal(list(make_stream(memory_dataset, split, sampler, "cpu").batches(0, 5)), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_named_across_processes(file_dataset: Dataset, workers: int) -> None:
    store = file_dataset.train.images
    assert isinstance(store, FileImages)
    victim = store.path(50)  # one without a label, so it is in the unlabelled set
    victim.write_bytes(b"")

    def fails(run: object) -> None:
        with pytest.raises(NPMatchError) as caught:
            list(run()) if callable(run) else None
        assert str(caught.value).startswith(f"{victim}: not a readable image")
        assert "\n" not in str(caught.value)

    fails(lambda: stream_of(file_dataset, resident="never", workers=workers).batches(0, 10))
    fails(lambda: stream_of(file_dataset, resident="always", workers=workers).batches(0, 10))
    fails(lambda: iterate_images(store, 7, workers))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_images_in_order(memory_dataset: Dataset, file_dataset: Dataset, workers: int) -> None:
    pixels = memory_dataset.train.images.take(torch.arange(60))
    for dataset in (memory_dataset, file_dataset):
        batches = list(iterate_images(dataset.train.images, 7, workers))
        assert [len(batch) for batch in batches] == [7] * 8 + [4]
        assert torch.equal(torch.cat(batches), pixels)


def test_no_images() -> None:
    assert list(iterate_images(FileImages([], 8), 4)) == []


class Counting(ImageStore):
    """Says how many images were taken."""

    shape = (1, 2, 2)
    taken = 0

    def __len__(self) -> int:
        return 10**9

    def take(self, index: Tensor) -> Tensor:
        self.taken += len(index)
        return torch.zeros(len(index), 1, 2, 2, dtype=torch.uint8)


def test_nothing_is_read_long_before_it_is_asked_for() -> None:
    store = Counting()
    images = iterate_images(store, 100, workers=0)
    next(images)
    next(images)
    assert store.taken == 200


def test_what_workers_get_can_be_pickled(file_dataset: Dataset) -> None:
    stream = stream_of(file_dataset, resident="never")  # where workers are not forked, it is
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


@pytest.mark.gpu
def test_copies_beside_a_busy_gpu_are_whole_and_few() -> None:
    # Steps that take longer than their batches' copies: the host must neither overwrite what waits nor run away.
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    batches = [RawBatch(*(torch.full((2**20,), step, dtype=torch.int64) for _ in range(4))) for step in range(40)]
    sums = []
    for batch in copy_ahead(batches, torch.device("cuda")):
        torch.cuda._sleep(2_000_000)  # cycles: about a millisecond
        sums.append(torch.stack([part.sum() for part in batch]))
        del batch
    found = torch.stack(sums).cpu()
    assert torch.equal(found, torch.arange(40)[:, None].expand(-1, 4) * 2**20)
    one = 4 * 8 * 2**20
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before <= (SLOTS + 2) * one


@pytest.mark.gpu
def test_a_batch_may_be_kept() -> None:
    batches = [RawBatch(*(torch.full((1000,), step) for _ in range(4))) for step in range(20)]
    kept = list(copy_ahead(batches, torch.device("cuda")))
    assert_equal([batch.to(torch.device("cpu")) for batch in kept], batches)
    assert list(copy_ahead([], torch.device("cuda"))) == []
