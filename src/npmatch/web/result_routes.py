"""The routes of the page of a folder for what a round's model is worth: results, audits, forecasts and its file."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response

from npmatch.web.app import MAX_BODY, MAX_PAGE, figure_response, parse, read_body
from npmatch.web.forecasting import Forecasts
from npmatch.web.labelling import View
from npmatch.web.project import Project
from npmatch.web.requests import (
    DrawRequest,
    LookRequest,
    RoundMarkRequest,
    RoundRequest,
    RoundUserRequest,
    Strict,
    picture,
    waiting,
)
from npmatch.web.results import Estimates, describe_results, export_model, exported_model, picture_of_test
from npmatch.web.server import WorkQueue
from npmatch.web.training import Training

RoundQuery = Annotated[str, Query(alias="round", max_length=255)]


def add_result_routes(app: FastAPI, project: Project, queue: WorkQueue, slow: WorkQueue) -> None:
    """Routes for the results of a round, and its model as a file."""

    @app.get("/api/results")
    async def results(name: RoundQuery = "") -> dict[str, Any]:
        return await waiting(queue, describe_results, project, name)

    estimates = Estimates(project)

    @app.get("/api/estimate")
    async def estimate(name: RoundQuery) -> dict[str, Any]:
        return await waiting(slow, estimates.of, name)

    @app.get("/api/test-images/{position}")
    async def test_picture(position: int, name: RoundQuery) -> Response:
        return await picture(queue, picture_of_test, project, name, position)

    @app.post("/api/export")
    async def export(request: Request) -> dict[str, Any]:
        body = parse(RoundRequest, await read_body(request, MAX_BODY))
        await waiting(slow, export_model, project, body.round)
        return {"round": body.round}

    @app.get("/api/model.onnx")
    async def model(name: RoundQuery) -> Response:
        content = await waiting(queue, exported_model, project, name)
        headers = {"content-disposition": 'attachment; filename="model.onnx"'}
        return Response(content, media_type="application/octet-stream", headers=headers)


def add_stop_route(app: FastAPI, path: str, process: Training | Forecasts, queue: WorkQueue) -> None:
    """The route that stops a child process and describes what is left of it."""

    @app.post(path)
    async def stop(request: Request) -> dict[str, Any]:
        parse(Strict, await read_body(request, MAX_BODY) or b"{}")
        await waiting(queue, process.stop)
        return await waiting(queue, process.describe)


def add_forecast_routes(app: FastAPI, project: Project, queue: WorkQueue) -> None:
    """Routes for the forecast of a round: a child process, and what it has found."""
    forecasts = project.forecasts

    @app.get("/api/forecast")
    async def state(name: RoundQuery) -> dict[str, Any]:
        return await waiting(queue, forecasts.found, name)

    @app.post("/api/forecast")
    async def start(request: Request) -> dict[str, Any]:
        body = parse(RoundRequest, await read_body(request, MAX_BODY))
        await waiting(queue, forecasts.start, body.round)
        return await waiting(queue, forecasts.describe)

    add_stop_route(app, "/api/forecast/stop", forecasts, queue)

    @app.get("/api/forecast.svg")
    async def figure(name: RoundQuery) -> Response:
        return figure_response(await waiting(queue, forecasts.figure, name), "forecast")


def add_audit_routes(app: FastAPI, project: Project, queue: WorkQueue, slow: WorkQueue) -> None:
    """Routes for the audit of a round: draw pictures, answer them, compute the error, release them."""
    audits = project.audits

    @app.get("/api/audit")
    async def state(name: RoundQuery) -> dict[str, Any]:
        return await waiting(queue, lambda: audits.of(name).describe())

    @app.post("/api/audit")
    async def draw(request: Request) -> dict[str, Any]:
        body = parse(DrawRequest, await read_body(request, MAX_BODY))
        return await waiting(slow, audits.draw, body.round, body.count)

    @app.get("/api/audit/images")
    async def images(
        name: RoundQuery,
        view: View = "todo",
        start: Annotated[int, Query(ge=0)] = 0,
        count: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 24,
    ) -> dict[str, Any]:
        return await waiting(queue, lambda: audits.of(name).page(view, start, count))

    @app.post("/api/audit/labels")
    async def mark(request: Request) -> dict[str, Any]:
        body = parse(RoundMarkRequest, await read_body(request, MAX_BODY))
        answers = body.answer(), body.skip, body.who, body.seen.answer()
        return await waiting(queue, lambda: audits.of(body.round).mark(body.image, *answers))

    @app.post("/api/audit/undo")
    async def undo(request: Request) -> dict[str, Any]:
        body = parse(RoundUserRequest, await read_body(request, MAX_BODY))
        return await waiting(queue, lambda: audits.of(body.round).undo(body.who))

    @app.post("/api/audit/look")
    async def look(request: Request) -> dict[str, Any]:
        body = parse(LookRequest, await read_body(request, MAX_BODY))
        await waiting(queue, lambda: audits.of(body.round).look(body.interim))
        return await state(body.round)

    @app.post("/api/audit/release")
    async def release(request: Request) -> dict[str, Any]:
        body = parse(RoundRequest, await read_body(request, MAX_BODY))
        labels = await waiting(queue, lambda: audits.of(body.round).release())
        return {**await state(body.round), "labels": labels}

    @app.get("/api/audit/check.csv")
    async def table(name: RoundQuery) -> Response:
        content = await waiting(queue, lambda: audits.of(name).table())
        headers = {"content-disposition": 'attachment; filename="check.csv"'}
        return Response(content, media_type="text/csv; charset=utf-8", headers=headers)
