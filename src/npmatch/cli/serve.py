"""`npmatch serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npmatch.cli.shared import DeviceOption, RunDataOption, check_device, print_line


def serve(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN|DIR", help="Folder of a run, finished or still training, or a folder of images."),
    ],
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
    out: Annotated[
        Path | None,
        typer.Option("--out", help="With DIR: folder of the runs that are trained on it; default: DIR-runs beside it."),
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Serve a web page to label images, train, and try a model.

    On a folder of images, labelled or not, it leads from the first labels to predictions. On a run it suggests images
    the model is unsure of, and shows the run's metrics while it trains.
    """
    from npmatch.web.server import serve as serve_page

    def say(address: str) -> None:
        print_line(f"{folder}: {address}   (Ctrl-C ends it)")

    serve_page(folder, host, port, token, data, check_device(device), say, out)
