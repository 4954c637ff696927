"""Shows the examples of docstrings, lines that begin with `>>>`, as code on the site."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n|>>> ).+|\n>>> .*)*", re.M)


class Doctests(griffe.Extension):
    """Puts a fence around every run of examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            fenced = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
            obj.docstring.value = fenced
