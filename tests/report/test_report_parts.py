"""The parts of a report: which images are shown, what becomes of their pixels, curves, names, tables."""

import base64
import io
import math

import numpy as np
import pytest
import torch
from made_up_run import make_record
from PIL import Image

from npmatch.errors import NPMatchError
from npmatch.metrics import ClassRow
from npmatch.report import gallery_indices
from npmatch.report.curves import MOST_POINTS, thinned
from npmatch.report.drawing import name_points, panel
from npmatch.report.formatting import count, duration, percent
from npmatch.report.gallery import LARGEST_SIDE, is_crisp, png_data_uri
from npmatch.report.run_sections import rank_correlation
from npmatch.types import Prediction


def unsure(entropy: list[float]) -> tuple[Prediction, torch.Tensor]:
    n = len(entropy)
    return Prediction(torch.full((n, 2), 0.5), torch.tensor(entropy)), torch.zeros(n, dtype=torch.int64)


def test_gallery_holds_both_ends_of_the_uncertainty():
    prediction, y = unsure([0.5, 0.1, 0.6, 0.3, 0.2, 0.4])
    assert gallery_indices(prediction, y, 4) == [1, 4, 2, 0]
    assert gallery_indices(prediction, y, 3) == [1, 4, 2]
    assert gallery_indices(prediction, y, 1) == [1]
    assert gallery_indices(prediction, y, 0) == []


@pytest.mark.parametrize("n", [1, 5, 12, 13])
def test_gallery_shows_no_image_twice(n):
    prediction, y = unsure([0.25] * n)
    indices = gallery_indices(prediction, y)
    assert sorted(indices) == sorted(set(indices))
    assert len(indices) == min(n, 12)


def test_gallery_refuses_labels_of_another_set():
    prediction, y = unsure([0.1, 0.2])
    with pytest.raises(NPMatchError):
        gallery_indices(prediction, y[:1])


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB"), (4, "RGB")])
def test_small_images_keep_every_pixel(channels, mode):
    draw = torch.Generator().manual_seed(0)
    image = torch.randint(256, (channels, 8, 6), generator=draw).to(torch.uint8)
    picture = decoded(png_data_uri(image))
    assert (picture.mode, picture.size) == (mode, (6, 8))
    expected = image[0] if mode == "L" else image[:3].permute(1, 2, 0)
    assert np.array_equal(np.asarray(picture), expected.numpy())
    assert is_crisp(image)


def test_large_images_are_scaled_down_and_smooth():
    image = torch.full((3, 600, 300), 7, dtype=torch.uint8)
    picture = decoded(png_data_uri(image))
    assert picture.size == (LARGEST_SIDE // 2, LARGEST_SIDE)
    assert picture.getpixel((5, 5)) == (7, 7, 7)
    assert not is_crisp(image)


def test_series_are_ordered_and_finite():
    lines = [
        {"kind": "train", "step": 20, "loss": 2},
        {"kind": "train", "step": 10, "loss": 1.5},
        {"kind": "train", "step": 30, "loss": math.nan},
        {"kind": "train", "step": 40, "loss_extra": 1},
        {"kind": "eval", "step": 15, "loss": 9.0},
    ]
    record = make_record(records=lines)
    steps, values = record.series("train", "loss")
    assert (steps.tolist(), values.tolist()) == ([10, 20], [1.5, 2])
    assert record.last("train", "loss") == 2
    assert record.last("train", "nothing") is None
    assert record.keys("train", "loss") == ["loss", "loss_extra"]


def test_long_curves_are_averaged_not_sampled():
    steps = np.arange(50 * MOST_POINTS, dtype=float)
    jagged = np.where(steps % 2 == 0, 0.0, 2.0)
    thin_steps, thin_values = thinned((steps, jagged))
    assert len(thin_steps) == MOST_POINTS
    assert thin_values == pytest.approx(np.ones(MOST_POINTS))
    assert thin_steps[0] == pytest.approx(24.5)
    short = steps[:10], jagged[:10]
    assert thinned(short) is short


def test_names_beside_points_do_not_cover_one_another():
    draw = np.random.default_rng(0)
    points = draw.normal(size=(30, 2))
    figure, axes = panel("", "")
    axes.scatter(points[:, 0], points[:, 1])
    axes.margins(0.1)
    name_points(axes, points, [f"class {k}" for k in range(30)])
    figure.draw_without_rendering()
    # Heights of real letters are taken a little smaller: their boxes include room for accents.
    boxes = [text.get_window_extent().shrunk(1.0, 0.8) for text in axes.texts]
    assert len(boxes) > 15
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])


def test_rank_correlation_follows_the_order_alone():
    def rows(pairs):
        return [ClassRow("", 1, accuracy, uncertainty) for accuracy, uncertainty in pairs]

    assert rank_correlation(rows([(0.9, 0.1), (0.5, 0.2), (0.1, 3.0)])) == pytest.approx(-1)
    assert rank_correlation(rows([(0.9, 0.1), (0.1, 0.2), (0.5, 3.0)])) == pytest.approx(-0.5)
    assert rank_correlation(rows([(0.9, 0.1), (0.5, 0.2)])) is None
    assert rank_correlation(rows([(1.0, 0.1), (1.0, 0.2), (1.0, 0.3)])) is None
    unseen = ClassRow("", 0, math.nan, math.nan)
    assert rank_correlation([*rows([(0.9, 0.1), (0.5, 0.2), (0.1, 3.0)]), unseen]) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.97, "10 s"),
        (42, "42 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7625, "2 h 07 min"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_durations_as_people_say_them(seconds, words):
    assert duration(seconds) == words


def test_numbers_as_people_read_them():
    assert percent(5.06) == "5.1 %"
    assert percent(np.float32(12.5)) == "12.5 %"
    assert percent("12") == "–"
    assert count(1234567) == "1\u202f234\u202f567"
