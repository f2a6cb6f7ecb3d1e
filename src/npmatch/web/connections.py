"""HTTP connections that cannot be held without asking for anything.

uvicorn waits for the headers of a request without a limit, so that a few hundred clients that send half of them would
keep everybody else out. Here a client has HEADER_SECONDS for them, and of more than MAX_WAITING such clients the one
that has waited longest is disconnected: a browser, which sends its headers at once, still gets a place.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
MAX_WAITING = 256
MAX_CONNECTIONS = 512  # at a time; beyond them uvicorn itself answers 503


class PromptClients(H11Protocol):
    """A connection that is closed where the headers of a request do not arrive in time."""

    waiting: ClassVar[dict[PromptClients, asyncio.TimerHandle]] = {}  # for headers; the longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the headers of the first request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Waits for further headers, unless a request is being answered."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait_for_headers()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        if self in self.waiting or self.transport.is_closing():
            return
        self.waiting[self] = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        if len(self.waiting) > MAX_WAITING:
            longest = next(iter(self.waiting))
            longest._stop_waiting()  # now: many clients may come before the loop closes its connection
            longest.transport.close()

    def _stop_waiting(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()


def server_config(app: ASGIApp) -> uvicorn.Config:
    """How uvicorn serves the application."""
    return uvicorn.Config(
        app,
        http=PromptClients,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=3,
    )
