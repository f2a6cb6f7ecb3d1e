"""A griffe extension: on the site, the comment behind a field of a class serves as the field's docstring."""

from __future__ import annotations

import re
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Documents `x: Tensor  # B C H W, weak views` by its comment."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Sets the docstring of a class attribute to its comment."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            comment = re.search(r"  # (?!type: )(?:.*  # )?([^#]*)$", attr.source.strip())
            if comment is not None:
                attr.docstring = griffe.Docstring(comment[1], lineno=attr.lineno, parent=attr)
