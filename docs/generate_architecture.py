"""Rewrites the tables of docs/architecture.md: every room with what its ``__init__`` says of it, and who imports whom.

Run with ``make generated`` after a folder or an import between folders has changed; a test compares the page with the
tree.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from import_graph import ROOT, Module, module_edges, modules, room_edges

TARGET = ROOT / "docs/architecture.md"
SECTION = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end: \2 -->)", flags=re.DOTALL)


def rooms_of(known: Mapping[str, Module]) -> list[Module]:
    """Return the packages that are rooms: the distributions' own and the folders directly below them.

    A package of an old name, which leads to others, is none.
    """
    return [
        module
        for _, module in sorted(known.items())
        if module.is_package and module.name.count(".") <= 1 and not _is_old_name(module)
    ]


def _is_old_name(module: Module) -> bool:
    calls = (node for node in module.tree.body if isinstance(node, ast.Expr))
    return any(
        isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "moved_package"
        for node in calls
    )


def summary(module: Module) -> str:
    """Return the first paragraph of a package's docstring, on one line.

    Raises:
        ValueError: the package has no docstring.
    """
    text = ast.get_docstring(module.tree)
    if not text:
        raise ValueError(
            f"{module.path}: expected a docstring that says what lives in the folder; there is none. Write one."
        )
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`")


def rooms_table(known: Mapping[str, Module]) -> str:
    """Return a table of all rooms, with a link to each folder."""
    lines = ["| folder | content |", "| --- | --- |"]
    for module in rooms_of(known):
        folder = module.path.parent.relative_to(ROOT).as_posix()
        lines.append(f"| [`{module.name}`](../{folder}) | {summary(module)} |")
    return "\n".join(lines) + "\n"


def core_picture(known: Mapping[str, Module]) -> str:
    """Return a mermaid graph of the core's rooms."""
    names = {module.name for module in rooms_of(known) if module.name.startswith("rlhf_core.")}
    edges = {room: targets & names for room, targets in room_edges(known).items() if room in names}
    return _picture(edges, lambda name: name.partition(".")[2])


def packages_picture(known: Mapping[str, Module]) -> str:
    """Return a mermaid graph of the core, the libraries and the command line."""
    names = {
        module.top
        for module in known.values()
        if module.path.relative_to(ROOT).parts[0] in ("core", "libs", "cli")
    }
    edges: dict[str, set[str]] = {name: set() for name in names}
    for source, targets in module_edges(known).items():
        if (top := known[source].top) in names:
            edges[top] |= {known[target].top for target in targets} & names - {top}
    return _picture(edges, lambda name: name.replace("_", "-"))


def _picture(edges: Mapping[str, set[str]], label: Callable[[str], str]) -> str:
    """Return a mermaid graph: an arrow goes from the importing node to the imported one.

    An arrow that a longer way already implies is left out.
    """
    lines = ["```mermaid", "flowchart TD"]
    for source in sorted(edges):
        for target in sorted(edges[source]):
            if not any(_leads_to(edges, other, target) for other in edges[source] - {target}):
                lines.append(f"    {label(source)} --> {label(target)}")
    return "\n".join([*lines, "```"]) + "\n"


def current() -> str:
    """Return the page with its generated sections rewritten."""
    known = modules()
    texts = {
        "rooms": rooms_table(known),
        "core": core_picture(known),
        "packages": packages_picture(known),
    }
    return SECTION.sub(
        lambda match: match[1] + texts[match[2]] + match[3], TARGET.read_text(encoding="utf-8")
    )


def _leads_to(edges: Mapping[str, set[str]], start: str, goal: str) -> bool:
    waiting, seen = [start], {start}
    while waiting:
        for target in edges.get(waiting.pop(), ()):
            if target == goal:
                return True
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return False


if __name__ == "__main__":
    TARGET.write_text(current(), encoding="utf-8")
