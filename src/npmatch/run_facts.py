"""What a run's folder says of its model, for the card that travels with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npmatch.config import read_config_file
from npmatch.data import Split
from npmatch.report.record import final_scores
from npmatch.training import read_records


def run_facts(folder: Path) -> dict[str, Any]:
    """Data, counts and final scores as fields of ModelFacts; of a folder that is no run, none.

    Where the images lie stays out of it: a path names people and machines.
    """
    if not (folder / "config.yaml").is_file():
        return {}
    scores = final_scores(read_records(folder))
    facts: dict[str, Any] = {
        "data": str(read_config_file(folder / "config.yaml").get("data.source")),
        "scores": {key: value for key, value in scores.items() if key != "seconds"},
    }
    split = folder / "split.json"
    if split.is_file():
        facts["num_unlabeled"] = len(Split.load(split).unlabeled)
    return facts
