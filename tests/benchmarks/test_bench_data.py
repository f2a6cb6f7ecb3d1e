"""Benchmarks of views, streams and large sets: each compares like with like and says what it found."""

import io
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.augment import OURS, PILLOW, TENSOR, bench_augment, pictures, torch_threads, torchvision_view
from benchmarks.loader import PHOTO, bench_loader, make_photographs
from benchmarks.memory import RepeatedImages, bench_memory
from npmatch.augment import AugmentConfig
from npmatch.data import ArrayImages
from npmatch.errors import NPMatchError

SMALL = ["training.batch=4", "training.unlabeled_ratio=2", "backbone.width=4", "algorithm.bank=16"]


def test_views_are_compared_with_torchvisions():
    threads = torch.get_num_threads()
    result = bench_augment("cpu", cores=1, images=8, rounds=1)
    assert [(row["view"], row["way"]) for row in result.rows] == [
        (view, way) for view in ("strong", "weak") for way in (OURS, PILLOW, TENSOR)
    ]
    ms = {(row["view"], row["way"]): row["milliseconds"] for row in result.rows}
    for view in ("strong", "weak"):
        ratio = min(ms[view, PILLOW], ms[view, TENSOR]) / ms[view, OURS]
        assert result.ratios[f"{view} views on 1 cores: torchvision / ours"] == pytest.approx(ratio)
    assert torch.get_num_threads() == threads


def test_torchvisions_views_have_the_images_size_and_kind():
    pixels = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    for kind in ("weak", "strong"):
        transform = torchvision_view(kind, AugmentConfig())
        assert transform(pixels[0]).shape == (3, 32, 32)
        assert transform(pictures(pixels)[1]).size == (32, 32)
    assert np.array_equal(np.asarray(pictures(pixels)[2]).transpose(2, 0, 1), pixels[2].numpy())


def test_threads_come_back_after_an_error():
    before = torch.get_num_threads()
    with suppress(ValueError), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ValueError
    assert torch.get_num_threads() == before


def test_state_grows_with_the_set_and_the_step_is_measured_at_every_size(capsys):
    result = bench_memory("digits-40", SMALL, "cpu", counts=(1000, 100_000), rounds=1)
    assert [row["unlabeled"] for row in result.rows] == [1000, 100_000]
    small, large = (row["state_mib"] for row in result.rows)
    assert abs((large - small) * 2**20 - 99_000 * 8) < 1  # one int64 for each image more
    small, large = (row["milliseconds"] for row in result.rows)
    assert result.ratios == {"step with 100,000 / with 1,000 unlabelled images": pytest.approx(large / small)}
    assert "100,000 images: ready after" in capsys.readouterr().err


def test_repeated_images():
    pixels = torch.randint(256, (5, 1, 2, 2), dtype=torch.uint8)
    store = RepeatedImages(ArrayImages(pixels), 10**7)
    assert len(store) == 10**7
    assert torch.equal(store.take(torch.tensor([3, 8, 9_999_999])), pixels[[3, 3, 4]])


def test_photographs_are_as_heavy_as_photographs(tmp_path):
    first, second = make_photographs(tmp_path, 2)
    assert first.read_bytes() != second.read_bytes()
    assert 40_000 < first.stat().st_size < 200_000
    with Image.open(io.BytesIO(first.read_bytes())) as image:
        assert (image.size, image.format) == (PHOTO, "JPEG")


def test_the_loader_benchmark_refuses_images_that_are_not_streamed():
    with pytest.raises(NPMatchError, match=r"data\.resident=always: this benchmark measures streams"):
        bench_loader(["data.resident=always"], "cpu")


def test_training_is_compared_with_decoding():
    result = bench_loader(["training.batch=2"], "cpu", images=4, size=16, workers=0)
    decoding, steps, training = (row["images_per_second"] for row in result.rows)
    assert result.ratios["training / decoding alone"] == pytest.approx(training / decoding)
    assert result.ratios["training / the slower of decoding and steps alone"] == pytest.approx(
        training / min(decoding, steps)
    )
    # Without workers the loop decodes while it waits, and takes steps otherwise: the two times add up.
    assert 0.3 < training * (1 / decoding + 1 / steps) < 3
    assert 0 < result.rows[-1]["idle"] < 1
