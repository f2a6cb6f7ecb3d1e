"""Images loaded in order by worker processes, and batches copied to a GPU ahead of their use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npmatch.data import Dataset, FileImages, ImageStore, RawBatch, iterate_images
from npmatch.data.loading import SLOTS, copy_ahead, default_workers
from npmatch.errors import NPMatchError


def test_local_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npmatch.data.loading._cores", lambda: 24)
    found = []
    for ranks in ("1", "2", "64"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        found.append(default_workers())
    assert found == [16, 12, 1]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_images_come_in_order(memory_dataset: Dataset, file_dataset: Dataset, workers: int) -> None:
    pixels = memory_dataset.train.images.take(torch.arange(60))
    for dataset in (memory_dataset, file_dataset):
        batches = list(iterate_images(dataset.train.images, 7, workers))
        assert [len(batch) for batch in batches] == [7] * 8 + [4]
        assert torch.equal(torch.cat(batches), pixels)


def test_a_single_batch_starts_no_process(file_dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", lambda _: pytest.fail("started"))
    [images] = iterate_images(file_dataset.train.images, 60, workers=3)
    assert torch.equal(images, file_dataset.train.images.take(torch.arange(60)))
    with pytest.raises(pytest.fail.Exception, match="started"):
        next(iterate_images(file_dataset.train.images, 59, workers=3))


def test_batches_of_no_images_are_refused(memory_dataset: Dataset) -> None:
    for size in (0, -1):
        with pytest.raises(NPMatchError, match=f"batch_size={size}: give a number of images, 1 or more"):
            iterate_images(memory_dataset.train.images, size)


def test_no_images() -> None:
    assert list(iterate_images(FileImages([], 8), 4)) == []


class Counting(ImageStore):
    """Counts the images that were taken."""

    shape = (1, 2, 2)
    taken = 0

    def __len__(self) -> int:
        return 10**9

    def take(self, index: Tensor) -> Tensor:
        self.taken += len(index)
        return torch.zeros(len(index), 1, 2, 2, dtype=torch.uint8)


def test_images_are_not_read_far_ahead() -> None:
    store = Counting()
    images = iterate_images(store, 100, workers=0)
    next(images)
    next(images)
    assert store.taken == 200


@pytest.mark.gpu
def test_copies_to_a_busy_gpu_are_complete_and_few() -> None:
    # The steps take longer than the copies: the host must not overwrite a batch in use, nor copy too many ahead.
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    batches = [RawBatch(*(torch.full((2**20,), step, dtype=torch.int64) for _ in range(5))) for step in range(40)]
    sums = []
    for batch in copy_ahead(batches, torch.device("cuda")):
        torch.cuda._sleep(2_000_000)  # cycles: about a millisecond
        sums.append(torch.stack([part.sum() for part in batch]))
        del batch
    found = torch.stack(sums).cpu()
    assert torch.equal(found, torch.arange(40)[:, None].expand(-1, 5) * 2**20)
    one = 5 * 8 * 2**20
    assert torch.cuda.memory_stats()["active_bytes.all.peak"] - before <= (SLOTS + 2) * one


@pytest.mark.gpu
def test_a_batch_on_the_gpu_may_be_kept() -> None:
    batches = [RawBatch(*(torch.full((1000,), step) for _ in range(5))) for step in range(20)]
    kept = list(copy_ahead(batches, torch.device("cuda")))
    assert len(kept) == len(batches)
    for batch, expected in zip(kept, batches, strict=True):
        on_cpu = batch.to(torch.device("cpu"))
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(on_cpu, expected, strict=True))
    assert list(copy_ahead([], torch.device("cuda"))) == []
