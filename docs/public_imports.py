"""Extension of griffe, which reads sources for the API reference: a name that is imported as itself is public.

``from .module import name as name`` says so to type checkers. griffe by itself takes all imported names of a module
without ``__all__`` for private.
"""

from __future__ import annotations

import ast
from typing import Any

import griffe


class PublicImports(griffe.Extension):
    """Marks names that are imported as themselves."""

    def on_alias_instance(self, *, node: Any, alias: griffe.Alias, **others: Any) -> None:
        """Mark an imported name, as griffe has found it."""
        if isinstance(node, ast.ImportFrom):
            alias.public = any(one.name == one.asname == alias.name for one in node.names) or None
