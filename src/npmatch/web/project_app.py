"""The web application of a folder of pictures: its routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from starlette.types import ASGIApp

from npmatch.web.access import Access, AccessMiddleware
from npmatch.web.app import (
    MAX_BODY,
    MAX_OTHER_REQUESTS,
    MAX_PAGE,
    MAX_PREDICTIONS,
    MAX_UPLOAD,
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
from npmatch.web.requests import (
    AcceptRequest,
    ClassRequest,
    MarkRequest,
    RoundRequest,
    Strict,
    TrainingRequest,
    UserRequest,
    picture,
    waiting,
)
from npmatch.web.result_routes import add_audit_routes, add_forecast_routes, add_result_routes, add_stop_route
from npmatch.web.server import WorkQueue

OptionalRound = Annotated[str | None, Query(alias="round", max_length=255)]


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
    add_audit_routes(app, project, others, slow)
    add_forecast_routes(app, project, others)

    @app.post("/api/predict")
    async def predict(request: Request, name: OptionalRound = None) -> dict[str, Any]:
        with predictions.slot():
            content = await read_body(request, MAX_UPLOAD)
            return await predictions.run(project.answer, content, name)

    return AccessMiddleware(app, access)


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

    @app.post("/api/look-again")
    async def look_again(request: Request) -> dict[str, int]:
        parse(Strict, await read_body(request, MAX_BODY) or b"{}")
        return await waiting(queue, project.look_again)

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

    add_stop_route(app, "/api/training/stop", training, queue)

    @app.get("/api/figures")
    async def figures() -> list[dict[str, Any]]:
        current = await waiting(queue, project.current_round)
        return [] if current is None else list_figures(await waiting(queue, project.figures(current).drawings))

    @app.get("/figures/{name}.svg")
    async def figure(name: str) -> Response:
        current = await waiting(queue, project.current_round)
        return figure_response({} if current is None else await waiting(queue, project.figures(current).drawings), name)
