"""`npmatch serve`: opens a socket, chooses a token, runs the application, and bounds how many requests wait at once.

`serve` is the entry point. `WorkQueue` is what the application's routes (`app`) hand blocking work to.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from npmatch.errors import NPMatchError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

T = TypeVar("T")
MIN_TOKEN_LENGTH = 16


def serve(
    folder: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    data: Path | None = None,
    device: str | None = None,
    say: Callable[[str], None] = print,
    out: Path | None = None,
) -> None:
    """Serves a run, or a folder of pictures, until it is interrupted.

    Calls `say` with the page's URL once the page can be opened. `out` is where the rounds of a folder of pictures lie.
    """
    try:
        import uvicorn

        from npmatch.web.app import make_app
        from npmatch.web.connections import server_config
    except ModuleNotFoundError as error:
        raise NPMatchError(f"{error.name} is not installed; pip install 'npmatch[serve]'") from error
    from npmatch.web.access import Access
    from npmatch.web.project import Project
    from npmatch.web.project_app import make_project_app
    from npmatch.web.site import Site

    token = choose_token(token)
    make: Callable[[Access], ASGIApp]
    if is_run(folder):
        if out is not None:
            raise NPMatchError(f"--out is for a folder of images, and {folder} is a run")
        site = Site(folder, data, device)
        make = partial(make_app, site)
    else:
        if data is not None:
            raise NPMatchError(f"--data is for a run, and {folder} is a folder of images")
        make = partial(make_project_app, Project(folder, out, device))
    with open_socket(host, port) as listening:
        port = listening.getsockname()[1]
        config = server_config(make(Access(host, port, token)))
        listening.listen(128)  # a browser that opens the page at once now waits instead of failing
        say(page_url(host, port, token))
        silence_shutdown_messages()
        with suppress(KeyboardInterrupt):  # the normal way to end the server
            uvicorn.Server(config).run(sockets=[listening])


def is_run(folder: Path) -> bool:
    """Whether a folder is a run; one that is neither a run nor any other folder is an error."""
    from npmatch.runs.folder import RunFolder

    if not folder.is_dir():
        raise NPMatchError(f"{folder}: no such run, and no folder of images")
    return RunFolder(folder).exists()


def choose_token(token: str | None) -> str:
    """Returns `token` if given, else a random one: on loopback too, every user of the machine can reach the page."""
    if token is not None and (len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isalnum()):
        raise NPMatchError(
            f"--token: use at least {MIN_TOKEN_LENGTH} letters and digits, or leave it out to get a random one"
        )
    return token or secrets.token_hex(16)


def open_socket(host: str, port: int) -> socket.socket:
    """Binds a socket to host and port; an error says in one line why that failed."""
    try:
        (family, kind, proto, _, socket_address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        opened = socket.socket(family, kind, proto)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(socket_address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NPMatchError(f"{host}:{port}: {reason}; choose another --host or --port (0 picks a free port)") from error
    return opened


def page_url(host: str, port: int, token: str) -> str:
    """The URL to open in a browser, with the token."""
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/?token={token}"


def silence_shutdown_messages() -> None:
    """Keeps uvicorn from printing errors about requests that Ctrl-C interrupts."""
    logging.getLogger("uvicorn.error").addFilter(is_not_about_shutdown)
    warnings.filterwarnings("ignore", message="coroutine 'Server.serve' was never awaited")


def is_not_about_shutdown(record: logging.LogRecord) -> bool:
    """Whether a log record is about anything other than a request that the shutdown cancelled."""
    kind = record.exc_info[0] if record.exc_info else None
    is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
    return not is_cancelled and "graceful shutdown exceeded" not in record.getMessage()


class BusyError(Exception):
    """The queue is full."""

    def __init__(self, max_requests: int) -> None:
        """`max_requests` is the limit that was reached."""
        super().__init__(f"{max_requests} requests are waiting already, which is the limit; try again in a moment")


class WorkQueue:
    """Runs blocking work in `threads` threads; at most `max_requests` requests are running or waiting."""

    def __init__(self, threads: int, max_requests: int) -> None:
        """Threads start when they are first needed."""
        self.threads = ThreadPoolExecutor(threads)
        self.max_requests = max_requests
        self.num_requests = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Reserves a place for one request; taken before its body is read, so that pending uploads are bounded too."""
        # Only the event loop's thread runs this: no lock is needed.
        if self.num_requests >= self.max_requests:
            raise BusyError(self.max_requests)
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Calls `work(*arguments)` in one of the threads and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    def close(self) -> None:
        """Cancels waiting work and returns at once, without waiting for running work."""
        self.threads.shutdown(wait=False, cancel_futures=True)
