"""Uploaded images are decoded in a process that is ended where a file keeps it busy or crashes it."""

import io
import os
import signal
import threading
import time

import pytest
import torch
from served_page import picture_bytes

from npmatch.data import decode_image
from npmatch.errors import NPMatchError
from npmatch.web import decoding
from npmatch.web.decoding import ImageDecoder
from repeated_scans import jpeg_of_many_scans

PIXELS = 10_000_000


@pytest.fixture(scope="module")
def decoder():
    decoder = ImageDecoder()
    yield decoder
    decoder.stop()


def test_it_decodes_as_this_process_does(decoder):
    for form in ("PNG", "JPEG"):
        content = picture_bytes(form=form)
        assert torch.equal(decoder.decode(content, 16, 3, PIXELS), decode_image(io.BytesIO(content), 16, 3))
    assert decoder.decode(content, 8, 1, PIXELS).shape == (1, 8, 8)


def test_what_is_wrong_with_a_file_is_said(decoder):
    for content, message in (
        (b"", "not a readable image"),
        (b"not an image\n\n", "of no known format"),
        (picture_bytes()[:100], "not a readable image"),
        (picture_bytes((4000, 3000)), "more than the 10,000,000 allowed"),
        (jpeg_of_many_scans(100), "more than 64 scans"),
    ):
        with pytest.raises(NPMatchError, match=message):
            decoder.decode(content, 16, 3, PIXELS)


def test_a_file_that_takes_too_long_ends_the_process_and_the_next_is_decoded(decoder, monkeypatch):
    decoder.decode(picture_bytes(), 16, 3, PIXELS)
    first = decoder._process.pid
    monkeypatch.setattr(decoding, "DECODE_SECONDS", 0.2)
    os.kill(first, signal.SIGSTOP)  # as busy as a decoder can be
    started = time.monotonic()
    with pytest.raises(NPMatchError, match=r"takes more than 0\.2 seconds"):
        decoder.decode(picture_bytes(), 16, 3, PIXELS)
    assert time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    monkeypatch.undo()
    assert decoder.decode(picture_bytes(), 16, 3, PIXELS).shape == (3, 16, 16)


def test_a_crash_is_one_line_and_the_next_image_is_decoded(decoder):
    decoder.decode(picture_bytes(), 16, 3, PIXELS)
    os.kill(decoder._process.pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (decoder._process.pid, signal.SIGKILL)).start()
    with pytest.raises(NPMatchError, match="decoder crashed"):
        decoder.decode(picture_bytes(), 16, 3, PIXELS)
    assert decoder.decode(picture_bytes(), 16, 3, PIXELS).shape == (3, 16, 16)
