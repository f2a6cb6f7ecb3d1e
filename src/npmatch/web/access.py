"""Who may talk to the page, and what a browser may do with it.

A page on the user's own machine can be reached by every site the user's browser visits. Three doors are kept shut:
a foreign name that resolves to this address (the Host header must be ours), a foreign page that posts to it (the
Origin must be ours), and, where the page is reachable from other machines, everyone without the token.
"""

from __future__ import annotations

import hmac
import socket
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Nothing but the page's own files runs or styles it; data: and blob: are pictures the user has dropped.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
SAFE_METHODS = ("GET", "HEAD")


@dataclass(frozen=True)
class Access:
    """Where the page is bound, and the token that it asks for, if any."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    own_names: frozenset[str] = field(default_factory=lambda: frozenset({"localhost", socket.gethostname().lower()}))

    @property
    def cookie(self) -> str:
        """Browsers do not tell ports apart when they send cookies: two pages on one machine need two names."""
        return f"npmatch-{self.port}"

    def knows_host(self, header: str | None) -> bool:
        """Whether a Host header names this machine rather than a name that was made to point at it."""
        name = host_name(header)
        if name is None:
            return False
        if name in self.own_names or name == self.host.lower():
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        # A number cannot be made to point elsewhere; bound to loopback, only loopback's numbers lead here.
        return address.is_loopback or not is_loopback(self.host)

    def lets_in(self, given: str | None) -> bool:
        """Whether a token is the right one, in a time that does not tell how much of it is."""
        if self.token is None:
            return True
        return given is not None and hmac.compare_digest(given.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what is bound to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_name(header: str | None) -> str | None:
    """The name in a Host header, without port and brackets; nothing where it is not one."""
    try:
        return urlsplit(f"//{header}").hostname if header else None
    except ValueError:
        return None


class Guard:
    """Wraps the application: refuses strangers, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """Outermost, so that errors and static files pass through it too."""
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self.refusal(request)
        headers = HEADERS | self._remembered(request)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in headers.items() if k.encode() not in sent]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await (refusal or self.app)(scope, receive, send_guarded)

    def refusal(self, request: Request) -> Response | None:
        """Why this request is not answered, or nothing where it is."""
        if not self.access.knows_host(request.headers.get("host")):
            return turn_away(request, 400, "This page does not go by that name.")
        if not self.access.lets_in(self._token(request)):
            return turn_away(request, 401, "This page needs its token.")
        if request.method not in SAFE_METHODS and not is_own_page(request):
            return refuse(403, "Another site may not write here.")
        return None

    def _token(self, request: Request) -> str | None:
        """The token as a header, a cookie, or, when the page is first opened, a part of its address."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return bearer
        return request.query_params.get("token") or request.cookies.get(self.access.cookie)

    def _remembered(self, request: Request) -> dict[str, str]:
        """A cookie for a browser that came with the right token in the address."""
        given = request.query_params.get("token")
        if self.access.token is None or not given or not self.access.lets_in(given):
            return {}
        return {"set-cookie": f"{self.access.cookie}={self.access.token}; Path=/; HttpOnly; SameSite=Strict"}


def is_own_page(request: Request) -> bool:
    """Whether a write comes from our own page, or from no browser at all: browsers say where a write comes from."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.headers["host"].lower():
        return False
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def turn_away(request: Request, status: int, why: str) -> Response:
    """A refusal that a person at a browser can read, and a script too."""
    message = f"{why} Open the address that npmatch serve printed."
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(f'<!DOCTYPE html><html lang="en"><title>npmatch</title><p>{message}</p></html>', status)
    return refuse(status, message)


def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An answer that says in one line why there is no other."""
    return JSONResponse({"error": message}, status, headers)
