"""Messages of the source that name an option: those that are raised, as templates, found without running anything."""

import ast
import re
from dataclasses import dataclass
from functools import cache

from tests.integration.test_advised_options import ROOT, sources

FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")
HOLE = "\0"
"""Stands for what a message fills in."""


@dataclass(frozen=True)
class Raised:
    """A message behind ``raise``."""

    place: str
    """Module and function, as ``rlhf_data/rows.py:read``."""
    template: str
    """The text, with ``HOLE`` for each thing that is filled in."""

    def says(self, message):
        """Whether the parts of this text are in a message, in their order; breaks of lines are spaces."""
        rest = " ".join(message.split())
        for part in " ".join(self.template.split()).split(HOLE):
            _, found, rest = rest.partition(part) if part else ("", "", rest)
            if part and not found:
                return False
        return True


def _template(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return HOLE


def _texts(node):
    """Yield the templates of the strings below a node, each whole."""
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        yield _template(node)
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _raises(node, where):
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.Raise):
            yield where, child
        else:
            yield from _raises(child, child.name if named else where)


@cache
def raised_messages():
    """Return the messages that name an option, in the order of files and lines."""
    found = []
    for file in sources():
        text = file.read_text("utf-8")
        if not FLAG.search(text):
            continue
        module = str(file.relative_to(ROOT)).rpartition("src/")[2]
        for where, node in _raises(ast.parse(text), ""):
            found += [
                Raised(f"{module}:{where}", template)
                for template in _texts(node)
                if FLAG.search(template)
            ]
    return tuple(found)
