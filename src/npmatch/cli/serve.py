"""`npmatch serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from npmatch.cli.shared import DataOption, DeviceOption, check_device


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, finished or going on.")],
    host: Annotated[str, typer.Option("--host", help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="NPMATCH_TOKEN", help="Asked of every visitor; made up where --host is not loopback."
        ),
    ] = None,
    data: DataOption = None,
    device: DeviceOption = None,
) -> None:
    """A page to try images, label those the model is unsure of, and watch the run's figures."""
    from npmatch.web.server import serve as serve_run

    def say(address: str) -> None:
        Console().print(Text(f"{run}: {address}   (Ctrl-C ends it)"), soft_wrap=True)

    serve_run(run, host, port, token, data, check_device(device), say)
