"""The page's addresses: what may be asked for, within which limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from npmatch.web.access import Access, Guard, refuse
from npmatch.web.figures import FIGURE_POLICY, FIGURES
from npmatch.web.labelling import WHATEVER, View
from npmatch.web.server import BusyError, Worker
from npmatch.web.site import MAX_PIXELS, Site

STATIC = Path(__file__).parent / "static"
MAX_UPLOAD = 20 * 2**20  # bytes
MAX_NOTE = 4096  # bytes of any other request's body
UPLOAD_SECONDS = 60.0
PREDICTIONS_AT_ONCE = 32  # under way or waiting; the next is refused
PICTURES_AT_ONCE = 256
LARGEST_PAGE = 200
RETRY_SECONDS = 1
HANG_UP = {"connection": "close"}  # a client that goes on sending would be listened to for ever

Name = Annotated[str, StringConstraints(max_length=64)]  # of a browser: chosen by itself, and kept
Note = TypeVar("Note", bound=BaseModel)


class Mark(BaseModel):
    """What a person says of an image: a class, nothing any more, or that they pass."""

    image: StrictInt
    label: StrictInt | None = None
    skip: bool = False
    seen: StrictInt | None = WHATEVER  # the label it had when they said so
    who: Name = ""


class Undo(BaseModel):
    """Whose last step is taken back."""

    who: Name = ""


def make_app(site: Site, access: Access, predictions_at_once: int = PREDICTIONS_AT_ONCE) -> ASGIApp:
    """The application, guarded."""
    models, pictures = Worker(1, predictions_at_once), Worker(2, PICTURES_AT_ONCE)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        site.start()
        yield
        await asyncio.to_thread(site.stop)
        models.close()
        pictures.close()

    # FastAPI's own documentation pages would load scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    add_refusals(app)
    add_page(app)
    add_run(app, site, pictures)
    add_labelling(app, site, pictures)

    @app.post("/api/predict")
    async def predict(request: Request) -> dict[str, Any]:
        with models.place():
            content = await read_body(request, MAX_UPLOAD)
            return await models.run(site.answer, content)

    return Guard(app, access)


def add_refusals(app: FastAPI) -> None:
    """Every error is one line of JSON."""

    @app.exception_handler(NPMatchError)
    async def unusable(_: Request, error: NPMatchError) -> Response:
        return refuse(422, str(error))

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        await drain(request, MAX_UPLOAD)
        return refuse(503, str(error), {"retry-after": str(RETRY_SECONDS)})

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return refuse(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return refuse(400, "the upload was not finished")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return refuse(422, f"{'.'.join(map(str, first['loc'][1:])) or 'request'}: {first['msg']}")


def add_page(app: FastAPI) -> None:
    """The files the page is made of."""

    @app.get("/")
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")

    @app.get("/palette.css")
    async def palette() -> Response:
        return Response(PALETTE, media_type="text/css")

    app.mount("/static", StaticFiles(directory=STATIC))


def add_run(app: FastAPI, site: Site, pictures: Worker) -> None:
    """How the run stands, and its figures."""

    @app.get("/api/run")
    async def about() -> dict[str, Any]:
        limits = {"upload_bytes": MAX_UPLOAD, "upload_pixels": MAX_PIXELS}
        return {**site.about(), "limits": limits}

    @app.get("/api/status")
    async def status() -> dict[str, Any]:
        with pictures.place():
            return await pictures.run(site.status)

    @app.get("/api/figures")
    async def figures() -> list[dict[str, Any]]:
        with pictures.place():
            drawn = await pictures.run(site.figures.drawings)
        return [{"name": name, "title": FIGURES[name].title, "about": FIGURES[name].about} for name in drawn]

    @app.get("/figures/{name}.svg")
    async def figure(name: str) -> Response:
        with pictures.place():
            drawing = (await pictures.run(site.figures.drawings)).get(name)
        if drawing is None:
            raise HTTPException(404, "there is no such figure")
        return Response(drawing, media_type="image/svg+xml", headers={"content-security-policy": FIGURE_POLICY})


def add_labelling(app: FastAPI, site: Site, pictures: Worker) -> None:
    """Unlabelled images, and what people say of them."""

    @app.get("/api/images")
    async def images(
        view: View = "todo",
        predicted: int | None = None,
        start: Annotated[int, Query(ge=0)] = 0,
        count: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = 24,
    ) -> dict[str, Any]:
        with pictures.place():
            return await pictures.run(site.labelling.page, view, predicted, start, count)

    @app.get("/api/images/{position}")
    async def image(position: int) -> Response:
        with pictures.place():
            try:
                content, media_type = await pictures.run(site.picture, position)
            except NPMatchError as error:  # whose text may name a file of this machine
                raise HTTPException(404, "there is no such image, or it cannot be read") from error
        return Response(content, media_type=media_type, headers={"cache-control": "private, max-age=600"})

    @app.post("/api/labels")
    async def mark(request: Request) -> dict[str, Any]:
        with pictures.place():
            said = parse(Mark, await read_body(request, MAX_NOTE))
            words = said.image, said.label, said.skip, said.who, said.seen
            return await pictures.run(site.labelling.mark, *words)

    @app.post("/api/undo")
    async def undo(request: Request) -> dict[str, Any]:
        with pictures.place():
            asked = parse(Undo, await read_body(request, MAX_NOTE) or b"{}")
            return await pictures.run(site.labelling.undo, asked.who)

    @app.get("/api/labels.csv")
    async def export() -> Response:
        table = encode_label_table(site.labelling.desk.book.labels)
        named = {"content-disposition": 'attachment; filename="labels.csv"'}
        return Response(table, media_type="text/csv; charset=utf-8", headers=named)


def parse(note: type[Note], content: bytes) -> Note:
    """What the page sends, checked."""
    try:
        return note.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise HTTPException(422, f"{'.'.join(map(str, first['loc'])) or 'request'}: {first['msg']}") from None


async def read_body(request: Request, limit: int) -> bytes:
    """A request's body, counted as it arrives: what a client says of its length is not believed."""
    content = bytearray()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > limit:
                    await drain(request, 2 * limit)
                    raise HTTPException(413, f"larger than the {size_in_words(limit)} allowed", HANG_UP)
    except TimeoutError:
        raise HTTPException(408, f"the upload took more than {UPLOAD_SECONDS:g} seconds", HANG_UP) from None
    return bytes(content)


def size_in_words(size: int) -> str:
    """`20 MB`, `4 kB`."""
    return f"{size / 2**20:g} MB" if size >= 2**20 else f"{size / 2**10:g} kB"


async def drain(request: Request, limit: int) -> None:
    """Reads what a client is still sending, up to a limit, and forgets it: it then gets to read our answer."""
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            received = 0
            async for chunk in request.stream():
                received += len(chunk)
                if received > limit:
                    return
    except (TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: there is nothing more to read
        return
