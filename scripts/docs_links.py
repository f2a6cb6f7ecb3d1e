"""A hook of mkdocs: links from the pages into the code work in a checkout; on the site they are plain words."""

import re
from typing import Any

OUT_OF_THE_DOCS = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """The page without links to files that the site does not hold."""
    return OUT_OF_THE_DOCS.sub(r"\1", markdown)
