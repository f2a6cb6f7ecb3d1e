"""The web application: its routes, and the limits on requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, StrictInt, StringConstraints, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from npmatch.data.labels import encode_label_table
from npmatch.errors import NPMatchError
from npmatch.report.style import PALETTE
from npmatch.runs.label_book import LabelsNotSavedError
from npmatch.web.access import Access, AccessMiddleware, error_response
from npmatch.web.figures import FIGURE_POLICY, FIGURES
from npmatch.web.labelling import UNCHECKED, View
from npmatch.web.server import BusyError, WorkQueue
from npmatch.web.site import MAX_PIXELS, Site

STATIC = Path(__file__).parent / "static"
MAX_UPLOAD = 20 * 2**20  # bytes
MAX_BODY = 4096  # bytes, of every request but an upload
UPLOAD_SECONDS = 60.0
MAX_PREDICTIONS = 32  # running or waiting; the next is refused with 503
MAX_OTHER_REQUESTS = 256
MAX_PAGE = 200  # images
RETRY_SECONDS = 1
CLOSE = {"connection": "close"}  # so that a client that keeps sending does not hold the connection

UserName = Annotated[str, StringConstraints(max_length=64)]  # random, chosen and kept by the browser
Body = TypeVar("Body", bound=BaseModel)


class LabelRequest(BaseModel):
    """Labels an image, removes its label (None) or skips it."""

    image: StrictInt
    label: StrictInt | None = None
    skip: bool = False
    seen: StrictInt | None = UNCHECKED  # the label it had on the user's page
    who: UserName = ""


class UndoRequest(BaseModel):
    """Undoes the last change of one user."""

    who: UserName = ""


def make_app(site: Site, access: Access, max_predictions: int = MAX_PREDICTIONS) -> ASGIApp:
    """The application for one run, behind access control."""
    predictions, others = WorkQueue(1, max_predictions), WorkQueue(2, MAX_OTHER_REQUESTS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        site.start()
        yield
        await asyncio.to_thread(site.stop)
        predictions.close()
        others.close()

    # FastAPI's own documentation pages would load scripts from other servers.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    add_error_handlers(app)
    add_static_files(app)
    add_run_routes(app, site, others)
    add_labelling_routes(app, site, others)

    @app.post("/api/predict")
    async def predict(request: Request) -> dict[str, Any]:
        with predictions.slot():
            content = await read_body(request, MAX_UPLOAD)
            return await predictions.run(site.answer, content)

    return AccessMiddleware(app, access)


def add_error_handlers(app: FastAPI) -> None:
    """Turns every error into one line of JSON."""

    @app.exception_handler(NPMatchError)
    async def invalid_input(_: Request, error: NPMatchError) -> Response:
        return error_response(422, str(error))

    @app.exception_handler(LabelsNotSavedError)
    async def not_saved(_: Request, error: LabelsNotSavedError) -> Response:
        return error_response(507, str(error))  # "Insufficient Storage": the request was right, and may succeed later

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        await drain(request, MAX_UPLOAD)
        return error_response(503, str(error), {"retry-after": str(RETRY_SECONDS)})

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def disconnected(_: Request, __: ClientDisconnect) -> Response:
        return error_response(400, "the upload was interrupted")

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return error_response(422, f"{'.'.join(map(str, first['loc'][1:])) or 'request'}: {first['msg']}")


def add_static_files(app: FastAPI, html: str = "index.html") -> None:
    """Routes for the page's HTML, scripts and styles."""

    @app.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / html)

    @app.get("/palette.css")
    async def palette() -> Response:
        return Response(PALETTE, media_type="text/css")

    app.mount("/static", StaticFiles(directory=STATIC))


def add_run_routes(app: FastAPI, site: Site, queue: WorkQueue) -> None:
    """Routes for the run's facts, its status and its figures."""

    @app.get("/api/run")
    async def about() -> dict[str, Any]:
        limits = {"upload_bytes": MAX_UPLOAD, "upload_pixels": MAX_PIXELS}
        return {**site.about(), "limits": limits}

    @app.get("/api/status")
    async def status() -> dict[str, Any]:
        with queue.slot():
            return await queue.run(site.status)

    @app.get("/api/figures")
    async def figures() -> list[dict[str, Any]]:
        with queue.slot():
            return list_figures(await queue.run(site.figures.drawings))

    @app.get("/figures/{name}.svg")
    async def figure(name: str) -> Response:
        with queue.slot():
            return figure_response(await queue.run(site.figures.drawings), name)


def list_figures(drawn: Mapping[str, str]) -> list[dict[str, Any]]:
    """The figures that can be requested, with their titles."""
    return [{"name": name, "title": FIGURES[name].title, "about": FIGURES[name].about} for name in drawn]


def figure_response(drawn: Mapping[str, str], name: str) -> Response:
    """One of the figures as an SVG file."""
    if name not in drawn:
        raise HTTPException(404, "there is no such figure")
    return Response(drawn[name], media_type="image/svg+xml", headers={"content-security-policy": FIGURE_POLICY})


def add_labelling_routes(app: FastAPI, site: Site, queue: WorkQueue) -> None:
    """Routes for the unlabelled images and the labels given to them."""

    @app.get("/api/images")
    async def images(
        view: View = "todo",
        predicted: int | None = None,
        start: Annotated[int, Query(ge=0)] = 0,
        count: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 24,
    ) -> dict[str, Any]:
        with queue.slot():
            return await queue.run(site.labelling.page, view, predicted, start, count)

    @app.get("/api/images/{position}")
    async def image(position: int) -> Response:
        with queue.slot():
            try:
                content, media_type = await queue.run(site.image, position)
            except NPMatchError as error:  # its text may hold a path on this machine
                raise HTTPException(404, "there is no such image, or it cannot be read") from error
        return Response(content, media_type=media_type, headers={"cache-control": "private, max-age=600"})

    @app.post("/api/labels")
    async def mark(request: Request) -> dict[str, Any]:
        with queue.slot():
            body = parse(LabelRequest, await read_body(request, MAX_BODY))
            return await queue.run(site.labelling.mark, body.image, body.label, body.skip, body.who, body.seen)

    @app.post("/api/undo")
    async def undo(request: Request) -> dict[str, Any]:
        with queue.slot():
            body = parse(UndoRequest, await read_body(request, MAX_BODY) or b"{}")
            return await queue.run(site.labelling.undo, body.who)

    @app.get("/api/labels.csv")
    async def export() -> Response:
        with queue.slot():
            table = encode_label_table(await queue.run(lambda: site.labelling.annotations.book.labels))
        headers = {"content-disposition": 'attachment; filename="labels.csv"'}
        return Response(table, media_type="text/csv; charset=utf-8", headers=headers)


def parse(model: type[Body], content: bytes) -> Body:
    """Parses and validates a JSON request body."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise HTTPException(422, f"{'.'.join(map(str, first['loc'])) or 'request'}: {first['msg']}") from None


async def read_body(request: Request, limit: int) -> bytes:
    """A request's body; its bytes are counted as they arrive, because Content-Length may be wrong."""
    content = bytearray()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limit:
                    await drain(request, 2 * limit)
                    raise HTTPException(413, f"larger than the {format_size(limit)} allowed", CLOSE)
    except TimeoutError:
        raise HTTPException(408, f"the upload took more than {UPLOAD_SECONDS:g} seconds", CLOSE) from None
    return bytes(content)


def format_size(size: int) -> str:
    """A number of bytes as `20 MB` or `4 kB`."""
    return f"{size / 2**20:g} MB" if size >= 2**20 else f"{size / 2**10:g} kB"


async def drain(request: Request, limit: int) -> None:
    """Reads and discards the rest of a body, up to `limit` bytes: most clients read a response only after sending."""
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            received = 0
            async for chunk in request.stream():
                received += len(chunk)
                if received > limit:
                    return
    except (TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: the body was read already
        return
