"""The inspection of single files: a file passes if and only if training can decode it."""

import io
import os
import time

import numpy as np
import pytest
from PIL import Image

from npmatch.data import decode_image
from npmatch.data.check.inspection import inspect_file
from npmatch.errors import NPMatchError


def photo(side=120):
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8))
    return small.resize((side, side), Image.Resampling.BICUBIC)


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


WHOLE = {
    "baseline.jpg": encoded(photo(), "JPEG"),
    "progressive.jpg": encoded(photo(), "JPEG", progressive=True),
    "grey.jpg": encoded(photo().convert("L"), "JPEG"),
    "cmyk.jpg": encoded(photo().convert("CMYK"), "JPEG"),
    "x.png": encoded(photo(), "PNG"),
    "x.gif": encoded(photo(), "GIF"),
    "x.webp": encoded(photo(), "WEBP"),
    "x.tiff": encoded(photo(), "TIFF", compression="tiff_lzw"),
    "lab.tiff": encoded(photo().convert("LAB"), "TIFF"),
    "x.bmp": encoded(photo(), "BMP"),
    "x.ppm": encoded(photo(), "PPM"),
}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of broken metadata; the command line ignores them as well
@pytest.mark.parametrize("name", WHOLE)
def test_a_file_passes_if_and_only_if_training_can_decode_it(name, tmp_path):
    whole, path = WHOLE[name], tmp_path / name
    verdicts = []
    for share in (1.0, 0.97, 0.8, 0.5, 0.3, 0.1, 0.01):
        path.write_bytes(whole[: int(share * len(whole))])
        try:
            decode_image(path, 32)
            decodes = True
        except NPMatchError:
            decodes = False
        inspection = inspect_file(str(path))
        assert (inspection.problem == "") == decodes, (share, inspection)
        assert inspection.problem in ("", "truncated", "not-an-image")
        verdicts.append(decodes)
    assert verdicts[0]
    assert not verdicts[3]


def test_the_inspection_of_an_undamaged_file(tmp_path):
    path = tmp_path / "x.jpg"
    path.write_bytes(WHOLE["baseline.jpg"])
    inspection = inspect_file(str(path))
    assert (inspection.width, inspection.height, inspection.mode, inspection.format) == (120, 120, "RGB", "JPEG")
    assert inspection.notes == ()
    path.write_bytes(WHOLE["x.png"])
    again = inspect_file(str(path))
    assert again.notes == ("wrong-extension",)
    assert again.digest != inspection.digest
    assert np.corrcoef(again.thumbnail.ravel(), inspection.thumbnail.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("pixels", [np.float32, np.int32])
def test_pixels_of_unknown_range(pixels, tmp_path):
    path = tmp_path / "x.tif"
    Image.fromarray(np.full((20, 20), 200, pixels)).save(path)
    assert inspect_file(str(path)).problem == "float-pixels"


def test_files_that_cannot_be_opened(tmp_path):
    assert inspect_file(str(tmp_path / "none.png")).problem == "missing"
    assert inspect_file(str(tmp_path)).problem == "unreadable"
    os.mkfifo(tmp_path / "pipe.png")
    assert inspect_file(str(tmp_path / "pipe.png")).problem == "unreadable"
    (tmp_path / "loop.png").symlink_to("loop.png")
    assert inspect_file(str(tmp_path / "loop.png")).problem == "unreadable"


def test_a_name_that_no_file_can_have():
    assert inspect_file("a\0b.png").problem == "missing"


def test_a_large_header_is_refused_before_anything_is_allocated(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    path.write_bytes(WHOLE["x.png"])
    monkeypatch.setattr("npmatch.data.check.inspection.MAX_PIXELS", 120 * 120 - 1)
    inspection = inspect_file(str(path))
    assert inspection.problem == "huge"
    assert "120×120" in inspection.detail


def test_the_thumbnail_of_a_large_jpeg_is_that_of_the_whole_picture(tmp_path):
    ramp = np.linspace(0, 255, 1600).astype(np.uint8)
    Image.fromarray(np.tile(ramp, (800, 1))).convert("RGB").save(tmp_path / "x.jpg")
    thumbnail = inspect_file(str(tmp_path / "x.jpg")).thumbnail.astype(float)
    assert np.abs(thumbnail - np.arange(8, 256, 16)[None]).max() < 4


def test_a_file_of_terabytes_takes_no_time(tmp_path):
    """Such a file is sparse: it takes no space, but reading it would take an hour."""
    start = time.monotonic()
    for name, content, problem in (("zeros.png", b"", "not-an-image"), ("longer.png", WHOLE["x.png"], "")):
        (tmp_path / name).write_bytes(content)
        os.truncate(tmp_path / name, 1 << 42)
        assert inspect_file(str(tmp_path / name)).problem == problem
    assert time.monotonic() - start < 60
