"""`npmatch serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npmatch.cli.shared import DeviceOption, RunDataOption, check_device, print_line


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or still training.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 lets other machines connect.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free port.")
    ] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="NPMATCH_TOKEN",
            help="Token that every request must carry; default: a random one, printed with the address.",
        ),
    ] = None,
    data: RunDataOption = None,
    device: DeviceOption = None,
) -> None:
    """Serve a web page to try images, label them and follow a run.

    The page suggests images the model is unsure of, and shows the run's metrics while it trains.
    """
    from npmatch.web.server import serve as serve_run

    def say(address: str) -> None:
        print_line(f"{run}: {address}   (Ctrl-C ends it)")

    serve_run(run, host, port, token, data, check_device(device), say)
