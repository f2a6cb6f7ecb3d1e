"""An extension of griffe: on the site, the comment behind a field of a class is what the field's docstring would be."""

from __future__ import annotations

import re
from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """`x: Tensor  # B C H W, weak views` is documented by its comment, as in the code."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Gives an attribute of a class its comment."""
        if attr.docstring is None and attr.parent is not None and attr.parent.is_class:
            comment = re.search(r"  # (?!type: )(?:.*  # )?([^#]*)$", attr.source.strip())
            if comment is not None:
                attr.docstring = griffe.Docstring(comment[1], lineno=attr.lineno, parent=attr)
