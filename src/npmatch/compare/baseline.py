"""A baseline as one job of a comparison: on the same split as the runs, with results in a folder like theirs.

A comparison runs `python -m npmatch.compare.baseline REQUEST` as a child process; REQUEST is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

from npmatch.baselines import BASELINES
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import Config
from npmatch.data import load_configured
from npmatch.data.long_tail import largest_class_ratio
from npmatch.data.split import evaluation_set
from npmatch.distributed.devices import choose_device
from npmatch.errors import NPMatchError
from npmatch.metrics import scores
from npmatch.runs.baseline import predict_baseline
from npmatch.runs.build import make_spec, normalised_for
from npmatch.runs.fit import check_and_split
from npmatch.runs.folder import RunFolder
from npmatch.training import Display


def run_baseline(name: str, config: Config, run: RunFolder, device: str | None) -> None:
    """Fits a baseline on the features that a run of this configuration would start from, and writes its results."""
    dataset = load_configured(config.data)
    split, _ = check_and_split(dataset, config, run, allow_change=False, display=Display("", 0, quiet=True))
    held_out, prediction, final = evaluation_set(dataset, split), None, dict[str, Any]()
    started = time.monotonic()
    if held_out is not None:
        prediction = predict_baseline(BASELINES[name], config, dataset, split, held_out, choose_device(device))
        final = {**scores(prediction, held_out.labels).asdict()}
        final["class_ratio"] = largest_class_ratio(dataset, split, held_out)
    final["seconds"] = time.monotonic() - started
    spec = make_spec(config, normalised_for(config, dataset), split)
    run.write_results(split, replace(spec, algorithm=name, algorithm_config={}), prediction, held_out, final)


def main(text: str) -> int:
    """Runs the baseline of a request {baseline, out, device, recipe, algorithm, seed, overrides}."""
    request = json.loads(text)
    name, run, device = request.pop("baseline"), RunFolder(request.pop("out")), request["device"]
    try:
        run_baseline(name, resolve_config(**request), run, device)
    except NPMatchError as error:
        sys.stderr.write(f"npmatch: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
