"""Modules of this repository's packages and what each imports, read from the source without running it.

Imports inside functions and under TYPE_CHECKING count as well: a reader follows those too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ("core/src", "libs/*/src", "cli/src", "plugins/*/src", "contrib/*/src")


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a package of this repository."""

    name: str
    """Dotted, without ``__init__``."""
    path: Path
    is_package: bool

    @property
    def top(self) -> str:
        """The distribution's package."""
        return self.name.partition(".")[0]

    @property
    def folder(self) -> str:
        """The package that the module lies in; a package's own ``__init__`` lies in the package."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        """The sub-folder of its distribution that the module is in, else the module itself.

        The distribution's top folder is no room: its modules are entrances, each on its own.
        """
        top, _, below = self.folder.partition(".")
        return f"{top}.{below.partition('.')[0]}" if below else self.name

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module or name."""

    source: str
    """The importing module."""
    module: str
    """Where the name comes from: a module of this repository where it is one, else as written."""
    name: str
    """What is imported from it; empty for the module itself."""
    line: int


def modules() -> dict[str, Module]:
    """Return all modules by dotted name."""
    found: dict[str, Module] = {}
    for pattern in SOURCES:
        for folder in ROOT.glob(pattern):
            for path in folder.rglob("*.py"):
                parts = list(path.relative_to(folder).with_suffix("").parts)
                is_package = parts[-1] == "__init__"
                name = ".".join(parts[:-1] if is_package else parts)
                found[name] = Module(name, path, is_package)
    return found


def imports(module: Module, known: Mapping[str, Module]) -> Iterator[Import]:
    """Yield every import of a module, relative ones resolved."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (Import(module.name, alias.name, "", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                if inner in known:
                    yield Import(module.name, inner, "", node.lineno)
                else:
                    yield Import(module.name, origin, alias.name, node.lineno)


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return every strongly connected set of more than one node, sorted.

    Source: Tarjan 1972, "Depth-first search and linear graph algorithms".
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in edges.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in index:
            visit(node)
    return sorted(found)


def module_edges(known: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return for each module the modules of this repository that it imports."""
    return {
        name: {each.module for each in imports(module, known) if each.module in known} - {name}
        for name, module in known.items()
    }


def room_edges(known: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return for each room the other rooms that its modules import."""
    edges: dict[str, set[str]] = {}
    for source, targets in module_edges(known).items():
        room = known[source].room
        edges.setdefault(room, set()).update(known[target].room for target in targets)
    return {room: targets - {room} for room, targets in edges.items()}


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.folder.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])
