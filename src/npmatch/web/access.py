"""Access control: which requests the server answers, and what a browser may do with the page.

Every site that the user's browser visits can send requests to a server on the user's machine. Three kinds are refused:
requests under a foreign host name that resolves to this address (DNS rebinding; the Host header must be ours), writes
from another site's page (CSRF; the Origin must be ours), and requests without the token, because other people may use
the same machine or network.
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

# Only the page's own scripts and styles run; data: and blob: are images the user has dropped.
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
    """The address the server is bound to, and the token it requires; None requires none."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    own_names: frozenset[str] = field(default_factory=lambda: frozenset({"localhost", socket.gethostname().lower()}))

    @property
    def cookie(self) -> str:
        """Name of the cookie; it holds the port, because browsers send cookies to all ports of a host."""
        return f"npmatch-{self.port}"

    def accepts_host(self, header: str | None) -> bool:
        """Whether a Host header names this machine, and not a foreign name that resolves to it."""
        name = host_name(header)
        if name is None:
            return False
        if name in self.own_names or name == self.host.lower():
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        # An IP address cannot be rebound by DNS; a server bound to loopback is reached by loopback addresses alone.
        return address.is_loopback or not is_loopback(self.host)

    def accepts_token(self, token: str | None) -> bool:
        """Whether a token is the right one, compared in constant time."""
        if self.token is None:
            return True
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_name(header: str | None) -> str | None:
    """The host in a Host header, without port and brackets; None where the header is missing or malformed."""
    try:
        return urlsplit(f"//{header}").hostname if header else None
    except ValueError:
        return None


class AccessMiddleware:
    """Wraps the application: refuses requests that `Access` does not accept, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """`app` is the whole application, so that errors and static files pass through here too."""
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        headers = HEADERS | self._token_cookie(request)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = {name for name, _ in message["headers"]}
                extra = [(k.encode(), v.encode()) for k, v in headers.items() if k.encode() not in sent]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The error response for a request that is refused; None for one that is accepted."""
        if not self.access.accepts_host(request.headers.get("host")):
            return refuse_access(request, 400, "The host name in this request is not the server's own.")
        if not self.access.accepts_token(self._token(request)):
            return refuse_access(request, 401, "This page requires a token.")
        if request.method not in SAFE_METHODS and not is_own_page(request):
            return error_response(403, "Requests from another site cannot change anything here.")
        return None

    def _token(self, request: Request) -> str | None:
        """The token from the Authorization header, the URL (when the page is first opened) or the cookie."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return bearer
        return request.query_params.get("token") or request.cookies.get(self.access.cookie)

    def _token_cookie(self, request: Request) -> dict[str, str]:
        """A cookie for a browser whose URL held the right token."""
        token = request.query_params.get("token")
        if self.access.token is None or not token or not self.access.accepts_token(token):
            return {}
        return {"set-cookie": f"{self.access.cookie}={self.access.token}; Path=/; HttpOnly; SameSite=Strict"}


def is_own_page(request: Request) -> bool:
    """Whether a write comes from our own page or from no browser: browsers send the Origin of a write."""
    origin = request.headers.get("origin")
    if origin is not None and _authority(origin) != request.headers["host"].lower():
        return False
    return request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _authority(origin: str) -> str | None:
    """Host and port of an Origin header; None where it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def refuse_access(request: Request, status: int, why: str) -> Response:
    """An error response with what to do about it: HTML for a browser, JSON for a script."""
    message = f"{why} Open the URL that npmatch serve printed."
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(f'<!DOCTYPE html><html lang="en"><title>npmatch</title><p>{message}</p></html>', status)
    return error_response(status, message)


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error as JSON: {"error": message}."""
    return JSONResponse({"error": message}, status, headers)
