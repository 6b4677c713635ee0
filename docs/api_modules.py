"""Modules whose names are public, and so the pages of the API reference.

Those that ``docs/plugins.md`` lists under "What a plugin may import", the hook specifications, the package
``rlhf``, and of the libraries that are public as a whole every module without a leading underscore. Sources are read
as text: nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOTS = ("core/src", "cli/src", "libs/*/src")
SOURCES = tuple(
    path.relative_to(ROOT).as_posix() for root in ROOTS for path in sorted(ROOT.glob(root))
)
LIBRARIES = ("rlhf_testing", "rlhf_torch", "rlhf_tools")
"""Libraries of which every module is public."""
HOOKS = "rlhf_core.hookspecs"
SHADOWED = {
    "rlhf_config.described": "rlhf_config.described.described",
    "rlhf_config.resolve": "rlhf_config.resolve.resolve",
    "rlhf_core.storage.writing": "rlhf_core.storage.writing.writing",
}
"""Public names that are also those of a module, which readers of sources find first -> where they are defined."""


def public_modules() -> list[str]:
    """Dotted names of the public modules, in the order in which the reference lists them."""
    listed = _listed_modules()
    whole = [name for package in LIBRARIES for name in _modules_below(package)]
    return ["rlhf", "rlhf_core", HOOKS, *sorted(listed - {"rlhf_core", *LIBRARIES}), *whole]


def file_of(module: str) -> Path:
    """Return the source file of a module.

    Raises:
        FileNotFoundError: no source folder has the module.
    """
    for source in SOURCES:
        path = ROOT / source / module.replace(".", "/")
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    raise FileNotFoundError(f"{module}: expected it in one of {', '.join(SOURCES)}")


def public_names(module: str) -> list[str]:
    """Names that a module makes public: its ``__all__``, else what it defines without a leading underscore, else what
    it imports ``as`` the same name."""
    tree = ast.parse(file_of(module).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and _names(node) == ["__all__"]:
            return list(ast.literal_eval(node.value))
    if own := [name for node in tree.body for name in _names(node) if not name.startswith("_")]:
        return own
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = [each.name for node in imports for each in node.names if each.name == each.asname]
    # Constants, then classes, then functions.
    return sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))


def public_members(module: str) -> Iterator[str]:
    """``Class.member`` of what the classes that a module defines and makes public make public in their turn."""
    tree = ast.parse(file_of(module).read_text(encoding="utf-8"))
    public = public_names(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in public:
            for member in node.body:
                yield from (
                    f"{node.name}.{name}" for name in _names(member) if not name.startswith("_")
                )


def _listed_modules() -> set[str]:
    text = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    section = text.partition("## What a plugin may import")[2].partition("\n##")[0]
    return set(re.findall(r"`(rlhf_\w+(?:\.\w+)*)`", section))


def _modules_below(package: str) -> list[str]:
    """The package and every module below it, packages before their modules."""
    top = file_of(package).parent
    files = sorted(
        top.rglob("*.py"), key=lambda file: (file.parent, file.name != "__init__.py", file.name)
    )
    names = [
        ".".join([package, *file.relative_to(top).with_suffix("").parts]).removesuffix(".__init__")
        for file in files
    ]
    return [name for name in names if not re.search(r"(^|\.)_", name)]


def _names(node: ast.stmt) -> list[str]:
    """Names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        targets = [each for target in node.targets for each in getattr(target, "elts", [target])]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []
