"""`npmatch serve`: a socket, a token where one is needed, and the application behind them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from npmatch.errors import NPMatchError

T = TypeVar("T")


class BusyError(Exception):
    """Every place is taken."""

    def __init__(self, places: int) -> None:
        """`places`: how many there are."""
        super().__init__(f"{places} requests are waiting already, which is the limit; try again in a moment")


class Worker:
    """At most `places` requests are under way or waiting, of which `threads` are worked on."""

    def __init__(self, threads: int, places: int) -> None:
        """Threads start when they are needed."""
        self.threads = ThreadPoolExecutor(threads)
        self.places = places
        self.taken = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request; taken before its body is read, so that waiting uploads are bounded as well."""
        # Only the event loop's own thread comes here: no lock is needed.
        if self.taken >= self.places:
            raise BusyError(self.places)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """The result of `work`, done by one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    def close(self) -> None:
        """Waits for nobody."""
        self.threads.shutdown(wait=False, cancel_futures=True)


SHORTEST_TOKEN = 16
CONNECTIONS = 512  # at a time, of whatever kind; beyond them the server answers 503 by itself


def serve(
    folder: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    data: Path | None = None,
    device: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serves a run until it is interrupted; `say` is told the page's address once it can be opened."""
    try:
        import uvicorn

        from npmatch.web.app import make_app
    except ModuleNotFoundError as error:
        raise NPMatchError(f"{error.name} is not installed; pip install 'npmatch[serve]'") from error
    from npmatch.web.access import Access
    from npmatch.web.site import Site

    token = choose_token(host, token)
    site = Site(folder, data, device)
    with open_socket(host, port) as listening:
        port = listening.getsockname()[1]
        config = uvicorn.Config(
            make_app(site, Access(host, port, token)),
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=3,
        )
        listening.listen(128)  # from here on a browser that is quick waits rather than fails
        say(address(host, port, token))
        end_quietly()
        with suppress(KeyboardInterrupt):  # which is how a page is meant to end
            uvicorn.Server(config).run(sockets=[listening])


def end_quietly() -> None:
    """Ctrl-C while a request is under way, or before the first, is no error to be printed."""
    logging.getLogger("uvicorn.error").addFilter(is_no_cancellation)
    warnings.filterwarnings("ignore", message="coroutine 'Server.serve' was never awaited")


def is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether a line of the server's log is about anything but a request that the server's end has cut off."""
    kind = record.exc_info[0] if record.exc_info else None
    is_cut_off = kind is not None and issubclass(kind, asyncio.CancelledError)
    return not is_cut_off and "graceful shutdown exceeded" not in record.getMessage()


def choose_token(host: str, token: str | None) -> str | None:
    """The token given; a fresh one where other machines can reach the page; else none."""
    from npmatch.web.access import is_loopback

    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isalnum()):
        raise NPMatchError(f"--token: use at least {SHORTEST_TOKEN} letters and digits, or leave it out to get one")
    return token or (None if is_loopback(host) else secrets.token_hex(16))


def open_socket(host: str, port: int) -> socket.socket:
    """A bound socket, or one line on why it cannot be."""
    try:
        (family, kind, proto, _, where), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        opened = socket.socket(family, kind, proto)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NPMatchError(f"{host}:{port}: {reason}; choose another --host or --port (0 takes a free one)") from error
    return opened


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser."""
    if host in ("0.0.0.0", "::", ""):
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
