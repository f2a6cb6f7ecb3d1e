"""Writes docs/keys.md: every key of the configuration, with its default and the comment beside it in the code.

python scripts/write_keys.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from npmatch.algorithms import ALGORITHMS
from npmatch.augment import AugmentConfig
from npmatch.backbones import BackboneConfig
from npmatch.data.config import DataConfig
from npmatch.training.config import TrainingConfig

PAGE = Path(__file__).parents[1] / "docs" / "keys.md"
GROUPS = {"data": DataConfig, "augment": AugmentConfig, "backbone": BackboneConfig, "training": TrainingConfig}
INTRODUCTION = """\
# Every key

What each key stands at where neither a [recipe](configuration.md) nor [your images](data.md) nor you say otherwise.
`none` is a word one can type, for keys that have it. Written by `scripts/write_keys.py` from the code.
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
    hints, comments = get_type_hints(config), field_comments(config)
    rows = ["| key | default | |", "|---|---|---|"]
    for field in dataclasses.fields(config):
        words = ", ".join(f"`{choice}`" for choice in choices(hints[field.name]))
        about = ": ".join(filter(None, [words, comments.get(field.name)])).replace("|", r"\|")
        rows.append(f"| `{group}.{field.name}` | {as_typed(field.default)} | {about} |")
    return "\n".join(rows).replace("None:", "none:") + "\n"


def field_comments(config: type) -> dict[str, str]:
    """What the code says behind each field, on its line."""
    source = textwrap.dedent(inspect.getsource(config))
    return dict(re.findall(r"^    (\w+): [^#\n]*?  # (.*)$", source, re.MULTILINE))


def choices(hint: Any) -> tuple[str, ...]:
    """The words that a key takes, where it takes no others."""
    return get_args(hint) if get_origin(hint) is Literal else ()


def as_typed(value: Any) -> str:
    """A default as one would type it on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(as_typed(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
