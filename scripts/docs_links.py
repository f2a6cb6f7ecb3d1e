"""A mkdocs hook that turns links into the code, which work in a checkout, into plain text on the site."""

import re
from typing import Any

OUT_OF_THE_DOCS = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """The page without links to files outside the site."""
    return OUT_OF_THE_DOCS.sub(r"\1", markdown)
