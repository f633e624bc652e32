"""Docstrings as the site reads them: an `Example:` holds code, in the singular too."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:[ \t]*$", re.MULTILINE)


class DocstringHeadings(griffe.Extension):
    """Call the section of examples by the name under which Google's style knows it."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of a function, class or module once it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub("Examples:", obj.docstring.value)
