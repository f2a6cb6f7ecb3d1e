"""What is wrong with the pictures of a folder, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npmatch.data.check.findings import KINDS, DataReport
from npmatch.report.formatting import printable

SHOWN = 24  # pictures of each kind of finding
FOUND_IN_FILES = [kind for kind in KINDS if KINDS[kind].level == "left out"]  # and those below
FOUND_IN_FILES += ["duplicate", "near-duplicate", "wrong-extension", "animated", "tiny", "strip"]
FOUND_IN_FILES += ["unread-format"]


def describe_findings(report: DataReport, names: Sequence[str]) -> list[dict[str, Any]]:
    """Each kind of finding with some of its pictures, which are numbered as in `names`."""
    found, position = [], {name: i for i, name in enumerate(names)}
    for finding in report.findings:
        if finding.kind in FOUND_IN_FILES:
            rows = [
                {"image": position.get(name), "name": printable(name)}
                for of_group in (finding.groups or [finding.names])
                for name in of_group
            ]
            kind = KINDS[finding.kind]
            facts = {"kind": finding.kind, "level": kind.level, "meaning": kind.meaning, "count": len(rows)}
            found.append({**facts, "images": rows[:SHOWN]})
    return found
