"""Decoding of uploaded images in a process of its own, which is ended where it takes too long or crashes.

The images come from anyone who has the page's address, and decoders are written in C: whatever a file does to one, the
server goes on. Requests and answers are bytes with their length before them; nothing is unpickled.
"""

from __future__ import annotations

import atexit
import io
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import IO

import torch
from torch import Tensor

from npmatch.data import decode_image
from npmatch.errors import NPMatchError

DECODE_SECONDS = 10.0  # a photograph of 50 megapixels takes one or two
START_SECONDS = 120.0  # to import torch on a busy machine
READY, PIXELS, PROBLEM = b"r", b"p", b"e"  # first byte of what the process sends


@cache
def shared_decoder() -> ImageDecoder:
    """The decoder of this process."""
    return ImageDecoder()


class ImageDecoder:
    """Decodes one image at a time. The process is started by `start` or for the first image, and after each end."""

    def __init__(self) -> None:
        """Starts nothing."""
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._thread = ThreadPoolExecutor(1)  # talks to the process, so that an exchange can be given up
        atexit.register(self.stop)

    def start(self) -> None:
        """Starts the process, if it does not run, without waiting until it is ready."""
        with self._lock:
            self._running()

    def decode(self, content: bytes, size: int, channels: int, max_pixels: int) -> Tensor:
        """An image file as uint8, C×size×size; one that cannot be decoded in time is an error."""
        with self._lock:
            process = self._running()
            if not self._is_ready:
                self._exchange(process, None, START_SECONDS)
                self._is_ready = True
            answer = self._exchange(process, b"%d %d %d\n" % (size, channels, max_pixels) + content, DECODE_SECONDS)
        if answer[:1] == PROBLEM:
            raise NPMatchError(answer[1:].decode())
        return torch.frombuffer(bytearray(answer[1:]), dtype=torch.uint8).view(channels, size, size)

    def stop(self) -> None:
        """Ends the process; an image that another thread is decoding is an error there."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, started if necessary; in a session of its own, as Ctrl-C on the terminal is for the server."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
            self._is_ready = False
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes | None, seconds: float) -> bytes:
        """Sends a request, if there is one, and returns what the process sends next."""
        assert process.stdin is not None
        assert process.stdout is not None
        exchange = self._thread.submit(_exchange, process.stdin, process.stdout, request)
        try:
            return exchange.result(seconds)
        except TimeoutError:
            self.stop()
            raise NPMatchError(f"the image: takes more than {seconds:g} seconds to decode; save it again") from None
        except (EOFError, OSError) as error:
            self.stop()
            raise NPMatchError("the image: its decoder crashed; save it again as PNG or JPEG") from error


def _exchange(to: IO[bytes], back: IO[bytes], request: bytes | None) -> bytes:
    if request is not None:
        _send(to, request)
    return _receive(back)


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "big"))
    stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    """One message; an EOFError where the stream ends before it does."""
    head = stream.read(8)
    message = stream.read(int.from_bytes(head, "big"))
    if len(head) < 8 or len(message) < int.from_bytes(head, "big"):
        raise EOFError
    return message


def decode_requests(requests: IO[bytes], answers: IO[bytes]) -> None:
    """What the process does: decodes images until the server ends."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    _send(answers, READY)
    while True:
        try:
            head, _, content = _receive(requests).partition(b"\n")
        except EOFError:
            return
        size, channels, max_pixels = map(int, head.split())
        try:
            answer = PIXELS + decode_image(io.BytesIO(content), size, channels, max_pixels).numpy().tobytes()
        except NPMatchError as error:
            answer = PROBLEM + str(error).encode("utf-8", "replace")
        _send(answers, answer)


if __name__ == "__main__":
    decode_requests(sys.stdin.buffer, sys.stdout.buffer)
