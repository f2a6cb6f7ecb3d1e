"""JPEGs whose scans never end: valid, small, and slow to decode."""

import io
import re

import pytest

from npmatch.cli import main
from npmatch.data import decode_image
from npmatch.data.check.inspection import inspect_file
from npmatch.data.jpeg import MAX_SCANS, count_scans
from npmatch.errors import NPMatchError
from repeated_scans import jpeg_of_many_scans, saved_jpeg

END = b"\xff\xd9"


@pytest.mark.parametrize(
    ("mode", "progressive", "scans"), [("L", False, 1), ("RGB", False, 1), ("L", True, 6), ("RGB", True, 10)]
)
def test_scans_of_an_encoder_are_counted(mode, progressive, scans):
    content = saved_jpeg(mode, (64, 48), progressive=progressive)
    assert count_scans(content) == scans
    # What follows the image, such as the video of a phone's moving picture, is not counted.
    assert count_scans(content + b"\xff\xda\x00\x08" * 1000) == scans
    assert decode_image(io.BytesIO(content), 16).shape == (3, 16, 16)


def test_scans_of_one_component_each_are_counted_too():
    """A sequential JPEG may be split by component, and then repeated like a progressive one."""
    content = saved_jpeg("RGB", (16, 16), progressive=False)
    scan = re.search(rb"\xff\xda\x00\x0c\x03.*(?=\xff\xd9)", content, re.S)
    one = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + scan[0][14:]
    assert count_scans(content[: scan.start()] + one * (MAX_SCANS + 1) + END) == MAX_SCANS + 1


def test_repeated_scans_are_refused_everywhere(tiny_run, tmp_path, capfd):
    path = tmp_path / "slow.jpg"
    path.write_bytes(jpeg_of_many_scans(MAX_SCANS - 6))
    assert inspect_file(str(path)).problem == ""
    path.write_bytes(jpeg_of_many_scans(MAX_SCANS - 5))
    with pytest.raises(NPMatchError, match=r"slow\.jpg: a JPEG of more than 64 scans"):
        decode_image(path, 16)
    assert inspect_file(str(path)).problem == inspect_file(str(path), 16).problem == "many-scans"
    assert main(["predict", str(tiny_run.folder), str(path), "-o", str(tmp_path / "out.csv")]) == 1
    assert "more than 64 scans" in capfd.readouterr().err


def test_garbage_is_no_scan():
    for content in (b"", b"\xff", b"\xff\xd8\xff", b"\xff\xd8\xff\xc0\x00", b"\xff\xd8\xff\xda", b"\xff\xc2" * 9):
        assert count_scans(content) <= 1
