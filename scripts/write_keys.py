"""Writes docs/keys.md: every key of the configuration, with its default, what it takes, and the comment in the code.

python scripts/write_keys.py
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from npmatch.algorithms import ALGORITHMS
from npmatch.augment import AugmentConfig
from npmatch.backbones import BackboneConfig
from npmatch.data.config import DataConfig
from npmatch.training.config import TrainingConfig

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
GROUPS = {"data": DataConfig, "augment": AugmentConfig, "backbone": BackboneConfig, "training": TrainingConfig}
POWERS = {10**6: "10⁶", 10**9: "10⁹"}
INTRODUCTION = """\
# Every key

What each key stands at where neither a [recipe](configuration.md) nor [your images](data.md) nor you say otherwise, and
what it takes: `none` is a word one can type, and ranges include their ends. Written by `scripts/write_keys.py` from the
code.
"""


def page() -> str:
    """The whole page."""
    sections = [INTRODUCTION, *(f"## `{group}.*`\n\n{table(group, config)}" for group, config in GROUPS.items())]
    sections.append("## `algorithm.*`\n\nEach method has its own, and takes no other's.\n")
    for name, algorithm in ALGORITHMS.items():
        if dataclasses.fields(algorithm.Config):
            sections.append(f"### {name}\n\n{table('algorithm', algorithm.Config)}")
    return "\n".join(sections)


def table(group: str, config: type) -> str:
    """A row for each field of a dataclass."""
    hints, comments = get_type_hints(config, include_extras=True), field_comments(config)
    rows = ["| key | default | takes | |", "|---|---|---|---|"]
    for field in dataclasses.fields(config):
        takes = accepted(TypeAdapter(hints[field.name]).json_schema())
        about = comments.get(field.name, "").replace("|", r"\|")
        rows.append(f"| `{group}.{field.name}` | {as_typed(field.default)} | {takes} | {about} |")
    return "\n".join(rows).replace("None:", "none:") + "\n"


def field_comments(config: type) -> dict[str, str]:
    """What the code says behind each field, on its line."""
    source = textwrap.dedent(inspect.getsource(config))
    return dict(re.findall(r"^    (\w+): [^#\n]*?  # (.*)$", source, re.MULTILINE))


def accepted(schema: dict[str, Any]) -> str:
    """What a key takes, from the JSON schema of its type: words, a range of numbers, any text."""
    match schema:
        case {"anyOf": alternatives}:
            return " or ".join(accepted(one) for one in alternatives)
        case {"prefixItems": [first, *others]}:
            return f"{1 + len(others)} numbers, each {accepted(first)}"
        case {"enum": words}:
            return ", ".join(f"`{word}`" for word in words)
        case {"type": "boolean"}:
            return "`true`, `false`"
        case {"type": "null"}:
            return "`none`"
        case {"type": "string"}:
            return "text"
        case {"type": "integer", "exclusiveMinimum": low}:
            return accepted({"minimum": low + 1, "maximum": schema["maximum"]})
        case {"minimum": low, "maximum": high}:
            return f"{low} to {POWERS.get(high, high)}"
        case {"exclusiveMinimum": low, "maximum": high}:
            return f"above {low}, up to {POWERS.get(high, high)}"
        case {"minimum": low, "exclusiveMaximum": high}:
            return f"{low} to below {POWERS.get(high, high)}"
    raise ValueError(f"no words for {schema}")


def as_typed(value: Any) -> str:
    """A default as one would type it on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(as_typed(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
