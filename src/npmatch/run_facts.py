"""What a run's folder says of its model, for the card that travels with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npmatch.config import read_config_file
from npmatch.training import read_records


def run_facts(folder: Path) -> dict[str, Any]:
    """Data, counts and final scores as fields of ModelFacts; of a folder that is no run, none.

    Where the images lie stays out of it: a path names people and machines.
    """
    if not (folder / "config.yaml").is_file():
        return {}
    final: dict[str, Any] = next((record for record in reversed(read_records(folder)) if record["kind"] == "final"), {})
    facts: dict[str, Any] = {
        "data": str(read_config_file(folder / "config.yaml").get("data.source")),
        "scores": {key: value for key, value in final.items() if key not in ("kind", "step", "seconds")},
    }
    split = folder / "split.json"
    if split.is_file():
        facts["num_unlabeled"] = int(json.loads(split.read_text(encoding="utf-8"))["counts"]["unlabeled"])
    return facts
