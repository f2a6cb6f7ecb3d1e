"""The program that `python -m benchmarks.minutes` times: `npmatch train` with --minutes, and what each phase took.

    python -m benchmarks.minutes_worker RESULT DATA OUT MINUTES DEVICE [KEY=VALUE]...

It writes the seconds of each phase to the file RESULT, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

STARTED = time.monotonic()


def train_here(result: Path, data: str, out: str, minutes: float, device: str, words: list[str]) -> None:
    """Trains in this process, with the clock of the display at hand."""
    from npmatch.distributed.devices import choose_device
    from npmatch.runs.fit import train_run
    from npmatch.runs.request import Request
    from npmatch.training import Display

    imports = time.monotonic() - STARTED
    display = Display("", 0)
    request = Request(None, data, None, out, None, device, False, None, None, words, minutes)
    run = train_run(request, choose_device(device), False, display)
    steps = [record["step"] for record in run.records() if record["kind"] == "final"]
    result.write_text(json.dumps({"phases": {"imports": imports, **display.clock.seconds}, "steps": steps[-1]}))


if __name__ == "__main__":
    from npmatch.errors import NPMatchError

    try:
        train_here(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5], sys.argv[6:])
    except NPMatchError as error:
        sys.exit(f"npmatch: {error}")
