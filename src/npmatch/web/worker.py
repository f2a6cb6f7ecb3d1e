"""Work that may not pile up: a few threads, a stated number of places, and a polite refusal beyond them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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
