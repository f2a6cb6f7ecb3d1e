"""The web application of a folder of pictures: its routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, StringConstraints
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from npmatch.data.sources.label_table import Answer
from npmatch.errors import NPMatchError
from npmatch.web.access import Access, AccessMiddleware
from npmatch.web.app import (
    MAX_BODY,
    MAX_OTHER_REQUESTS,
    MAX_PAGE,
    MAX_PREDICTIONS,
    MAX_UPLOAD,
    UserName,
    add_error_handlers,
    add_static_files,
    figure_response,
    list_figures,
    parse,
    read_body,
)
from npmatch.web.labelling import View
from npmatch.web.models import MAX_PIXELS
from npmatch.web.project import Project
from npmatch.web.results import describe_results, export_model, exported_model, picture_of_test
from npmatch.web.server import WorkQueue

T = TypeVar("T")
ClassName = Annotated[StrictStr, StringConstraints(min_length=1, max_length=100)]
SetAside = Literal["none of these", "broken"]
PICTURE_HEADERS = {"cache-control": "private, max-age=600"}


class Strict(BaseModel):
    """A request whose fields are a closed list: all others are refused."""

    model_config = ConfigDict(extra="forbid")


class GivenAnswer(Strict):
    """An answer on the wire: a class, or why there is none; nothing for no answer."""

    label: ClassName | None = None
    aside: SetAside | None = None

    def answer(self) -> Answer | None:
        """As the table holds it."""
        return Answer(self.label or "", "" if self.label else self.aside or "") if self.label or self.aside else None


class MarkRequest(GivenAnswer):
    """Answers for a picture, takes the answer back, or skips it."""

    image: StrictInt
    skip: bool = False
    seen: GivenAnswer = GivenAnswer()  # the answer it had on the user's page
    who: UserName = ""


class UserRequest(Strict):
    """Undoes the last change of one user."""

    who: UserName = ""


class AcceptRequest(Strict):
    """Gives several pictures one label."""

    images: Annotated[list[StrictInt], Field(max_length=MAX_PAGE)]
    label: ClassName
    who: UserName = ""


class ClassRequest(Strict):
    """Adds a class, renames or merges it (`to`), or removes one that no picture has."""

    name: ClassName
    to: ClassName | None = None
    remove: bool = False
    who: UserName = ""


class TrainingRequest(Strict):
    """Starts a round. Nothing else can be chosen from the page."""

    minutes: StrictInt


class RoundRequest(Strict):
    """Names a round."""

    round: Annotated[StrictStr, StringConstraints(max_length=255)]


def make_project_app(project: Project, access: Access, max_predictions: int = MAX_PREDICTIONS) -> ASGIApp:
    """The application for one folder, behind access control."""
    predictions, others, slow = WorkQueue(1, max_predictions), WorkQueue(2, MAX_OTHER_REQUESTS), WorkQueue(1, 4)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        project.start()
        yield
        await asyncio.to_thread(project.stop)
        for queue in (predictions, others, slow):
            queue.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    add_error_handlers(app)
    add_static_files(app, "folder.html")
    add_folder_routes(app, project, others)
    add_desk_routes(app, project, others)
    add_training_routes(app, project, others)
    add_result_routes(app, project, others, slow)

    @app.post("/api/predict")
    async def predict(request: Request) -> dict[str, Any]:
        with predictions.slot():
            content = await read_body(request, MAX_UPLOAD)
            return await predictions.run(project.answer, content)

    return AccessMiddleware(app, access)


async def waiting(queue: WorkQueue, work: Callable[..., T], *arguments: object) -> T:
    """Does blocking work in the queue."""
    with queue.slot():
        return await queue.run(work, *arguments)


async def picture(queue: WorkQueue, work: Callable[..., tuple[bytes, str]], *arguments: object) -> Response:
    """A picture, or 404 without the error's text, which may hold a path on this machine."""
    try:
        content, media_type = await waiting(queue, work, *arguments)
    except NPMatchError as error:
        raise HTTPException(404, "there is no such picture, or it cannot be read") from error
    return Response(content, media_type=media_type, headers=PICTURE_HEADERS)


def add_folder_routes(app: FastAPI, project: Project, queue: WorkQueue) -> None:
    """Routes for the folder's facts, its status and what is wrong with its pictures."""

    @app.get("/api/folder")
    async def about() -> dict[str, Any]:
        limits = {"upload_bytes": MAX_UPLOAD, "upload_pixels": MAX_PIXELS}
        return {**project.about(), "limits": limits}

    @app.get("/api/status")
    async def status() -> dict[str, Any]:
        return await waiting(queue, project.status)

    @app.get("/api/findings")
    async def findings() -> list[dict[str, Any]]:
        return await waiting(queue, project.findings)

    @app.get("/api/images/{position}")
    async def image(position: int) -> Response:
        return await picture(queue, project.image, position)


def add_desk_routes(app: FastAPI, project: Project, queue: WorkQueue) -> None:
    """Routes for labelling."""
    desk = project.desk

    @app.get("/api/images")
    async def images(
        view: View = "todo",
        predicted: Annotated[str | None, Query(max_length=100)] = None,
        start: Annotated[int, Query(ge=0)] = 0,
        count: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 24,
        surest: bool = False,
    ) -> dict[str, Any]:
        return await waiting(queue, desk.page, view, predicted, start, count, surest)

    @app.post("/api/labels")
    async def mark(request: Request) -> dict[str, Any]:
        body = parse(MarkRequest, await read_body(request, MAX_BODY))
        return await waiting(queue, desk.mark, body.image, body.answer(), body.skip, body.who, body.seen.answer())

    @app.post("/api/accept")
    async def accept(request: Request) -> dict[str, Any]:
        body = parse(AcceptRequest, await read_body(request, MAX_BODY))
        return await waiting(queue, desk.accept, body.images, body.label, body.who)

    @app.post("/api/undo")
    async def undo(request: Request) -> dict[str, Any]:
        body = parse(UserRequest, await read_body(request, MAX_BODY) or b"{}")
        return await waiting(queue, desk.undo, body.who)

    @app.post("/api/classes")
    async def change_classes(request: Request) -> dict[str, Any]:
        body = parse(ClassRequest, await read_body(request, MAX_BODY))
        if body.to is not None:
            await waiting(queue, desk.rename_class, body.name, body.to.strip(), body.who)
        else:
            await waiting(queue, desk.remove_class if body.remove else desk.add_class, body.name.strip())
        return {"classes": await waiting(queue, desk.classes), "counts": await waiting(queue, desk.counts)}

    @app.get("/api/labels.csv")
    async def table() -> Response:
        content = await waiting(queue, lambda: desk.book.path.read_bytes() if desk.book.path.is_file() else b"")
        headers = {"content-disposition": 'attachment; filename="labels.csv"'}
        return Response(content, media_type="text/csv; charset=utf-8", headers=headers)


def add_training_routes(app: FastAPI, project: Project, queue: WorkQueue) -> None:
    """Routes for the training process, and the curves of a round."""
    training = project.training

    @app.post("/api/training")
    async def start(request: Request) -> dict[str, Any]:
        body = parse(TrainingRequest, await read_body(request, MAX_BODY))
        await waiting(queue, training.start, body.minutes)
        return await waiting(queue, training.describe)

    @app.post("/api/training/resume")
    async def resume(request: Request) -> dict[str, Any]:
        body = parse(RoundRequest, await read_body(request, MAX_BODY))
        await waiting(queue, training.resume, body.round)
        return await waiting(queue, training.describe)

    @app.post("/api/training/stop")
    async def stop(request: Request) -> dict[str, Any]:
        parse(Strict, await read_body(request, MAX_BODY) or b"{}")
        await waiting(queue, training.stop)
        return await waiting(queue, training.describe)

    @app.get("/api/figures")
    async def figures() -> list[dict[str, Any]]:
        current = await waiting(queue, project.current_round)
        return [] if current is None else list_figures(await waiting(queue, project.figures(current).drawings))

    @app.get("/figures/{name}.svg")
    async def figure(name: str) -> Response:
        current = await waiting(queue, project.current_round)
        return figure_response({} if current is None else await waiting(queue, project.figures(current).drawings), name)


def add_result_routes(app: FastAPI, project: Project, queue: WorkQueue, slow: WorkQueue) -> None:
    """Routes for the results of a round, and its model as a file."""

    @app.get("/api/results")
    async def results(name: Annotated[str, Query(alias="round", max_length=255)] = "") -> dict[str, Any]:
        return await waiting(queue, describe_results, project, name)

    @app.get("/api/test-images/{position}")
    async def test_picture(position: int, name: Annotated[str, Query(alias="round", max_length=255)]) -> Response:
        return await picture(queue, picture_of_test, project, name, position)

    @app.post("/api/export")
    async def export(request: Request) -> dict[str, Any]:
        body = parse(RoundRequest, await read_body(request, MAX_BODY))
        await waiting(slow, export_model, project, body.round)
        return {"round": body.round}

    @app.get("/api/model.onnx")
    async def model(name: Annotated[str, Query(alias="round", max_length=255)]) -> Response:
        content = await waiting(queue, exported_model, project, name)
        headers = {"content-disposition": 'attachment; filename="model.onnx"'}
        return Response(content, media_type="application/octet-stream", headers=headers)
