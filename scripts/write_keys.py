"""Writes docs/keys.md: every configuration key with its default, its accepted values and its comment in the code.

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
# Configuration keys

The default is the value of a key that is set neither by a [recipe](configuration.md), nor by [the defaults for your
images](data.md#default-settings), nor by you. `none` can be typed as a value, and ranges include their ends.
`scripts/write_keys.py` writes this page from the code.
"""


def page() -> str:
    """The page as Markdown."""
    sections = [INTRODUCTION, *(f"## `{group}.*`\n\n{table(group, config)}" for group, config in GROUPS.items())]
    sections.append("## `algorithm.*`\n\nEach method has its own keys and accepts no others.\n")
    for name, algorithm in ALGORITHMS.items():
        if dataclasses.fields(algorithm.Config):
            sections.append(f"### {name}\n\n{table('algorithm', algorithm.Config)}")
    return "\n".join(sections)


def table(group: str, config: type) -> str:
    """A Markdown table with a row for each field of a dataclass."""
    hints, comments = get_type_hints(config, include_extras=True), field_comments(config)
    rows = ["| key | default | accepts | |", "|---|---|---|---|"]
    for field in dataclasses.fields(config):
        accepts = accepted_values(TypeAdapter(hints[field.name]).json_schema())
        about = comments.get(field.name, "").replace("|", r"\|")
        rows.append(f"| `{group}.{field.name}` | {as_typed(field.default)} | {accepts} | {about} |")
    return "\n".join(rows).replace("None:", "none:") + "\n"


def field_comments(config: type) -> dict[str, str]:
    """The comment on the line of each field."""
    source = textwrap.dedent(inspect.getsource(config))
    return dict(re.findall(r"^    (\w+): [^#\n]*?  # (.*)$", source, re.MULTILINE))


def accepted_values(schema: dict[str, Any]) -> str:
    """The values that a key accepts, from the JSON schema of its type: words, a range of numbers, any text."""
    match schema:
        case {"anyOf": alternatives}:
            return " or ".join(accepted_values(one) for one in alternatives)
        case {"prefixItems": [first, *others]}:
            return f"{1 + len(others)} numbers, each {accepted_values(first)}"
        case {"enum": words}:
            return ", ".join(f"`{word}`" for word in words)
        case {"const": word}:
            return f"`{word}`"
        case {"type": "boolean"}:
            return "`true`, `false`"
        case {"type": "null"}:
            return "`none`"
        case {"type": "string"}:
            return "text"
        case {"type": "integer", "exclusiveMinimum": low}:
            return accepted_values({"minimum": low + 1, "maximum": schema["maximum"]})
        case {"minimum": low, "maximum": high}:
            return f"{low} to {POWERS.get(high, high)}"
        case {"exclusiveMinimum": low, "maximum": high}:
            return f"above {low}, up to {POWERS.get(high, high)}"
        case {"minimum": low, "exclusiveMaximum": high}:
            return f"{low} to below {POWERS.get(high, high)}"
    raise ValueError(f"unknown JSON schema: {schema}")


def as_typed(value: Any) -> str:
    """A default as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(as_typed(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
