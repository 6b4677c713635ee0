"""Finding of what chosen components import and this environment lacks, without importing any of it.

An extra of a component is looked up in the metadata of its distribution. Of a factory in a module that is not imported
yet, or in a user's file, the source is read: what it imports at its top level has to be there, and so has what modules
of the same package import that it imports in turn. Imports within functions, in ``try`` and under ``TYPE_CHECKING`` may
be missing for good reasons and are left out. A name that a factory's module nowhere binds is found in the same way.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from rlhf_core.code_reference import CodeReference
from rlhf_core.component import Registered, missing_requirements
from rlhf_core.errors import MissingDependency, PluginError

from ..resolved import ResolvedOptions, Selection

_MAKERS_OF_NAMES = {"*", "__getattr__", "globals", "vars", "setattr", "exec"}
"""Names in a source by which its module may have others than it shows."""


def check_installed(resolved: ResolvedOptions[Any]) -> None:
    """Check that what the run's components import is installed, and that their factories' modules have the factories.

    Raises:
        PluginError: the module of a factory lacks it.
        MissingDependency: something is missing; it names every component that lacks something, what, and how to
            install it.
    """
    here = list(_made_here(resolved))
    for selection in here:
        check_factory(selection.registered)
    options = ((one.registered, f"--{one.slot} {one.name}") for one in here)
    missing = list(dict.fromkeys(text for one in options for text in missing_of(*one)))
    if missing:
        raise MissingDependency("\n".join(missing))


def _made_here(resolved: ResolvedOptions[Any]) -> Iterator[Selection]:
    """Yield what is chosen, but for environments whose workers may have packages of their own."""
    for chosen in resolved.selections.values():
        for selection in chosen:
            if selection.environment is None or selection.environment.isolation == "none":
                yield selection


def check_factory(registered: Registered[Any]) -> None:
    """Check that the module of a component's factory has it; of a module that is not imported, the source is read.

    Raises:
        PluginError: the module lacks it.
    """
    factory = registered.component.factory
    if not isinstance(factory, str):
        return
    module, _, attribute = factory.partition(":")
    names = _names_of(module)
    if names is None or attribute in names:
        return
    near = "".join(f" Did you mean {name!r}?" for name in get_close_matches(attribute, names, n=1))
    raise PluginError(
        f"{registered.label}: module {module!r} has no {attribute!r}, which its factory names.{near}",
        code="plugin/no-factory",
    )


def _names_of(module: str) -> set[str] | None:
    """Return all names that a module binds, in any scope; None where its source does not show them all."""
    if module in sys.modules:
        return None  # it may make names at any time, and asking it costs nothing once it is needed
    source = _source(module)
    try:
        tree = None if source is None else ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.alias():
                names.add(node.asname or node.name.partition(".")[0])
            case ast.Name():
                names.add(node.id)
    return names if names and names.isdisjoint(_MAKERS_OF_NAMES) else None


def missing_of(registered: Registered[Any], option: str) -> Iterator[str]:
    """Yield a message for each thing that a component imports and that is not installed.

    Args:
        option: the option that chose it, for the messages.
    """
    who = f"{option} ({registered.origin})"
    extra, distribution = registered.component.extra, registered.distribution
    lacking = missing_requirements(distribution, extra)
    if lacking:
        assert distribution is not None
        yield (
            f"{who} needs {', '.join(lacking)}.\n"
            f"  pip install '{distribution.metadata['Name']}[{extra}]'"
        )
        return
    factory = registered.component.factory
    if isinstance(factory, str) and not _is_there(factory.partition(":")[0]):
        yield f"{who} has the factory {factory}, whose module is not there. Correct it, or install what has it."
        return
    for module, place in missing_imports(factory):
        yield (
            f"{who} imports {module}, not installed here ({place}).\n"
            f"  pip install {_requirement(module, distribution)}"
        )


def missing_imports(factory: object) -> Iterator[tuple[str, str]]:
    """Yield each top-level module that a factory needs and that cannot be found, with the file and line."""
    found: dict[str, str] = {}
    if isinstance(factory, CodeReference):
        _look(factory.path, "", found, set())
    elif isinstance(factory, str):
        _look_at(factory.partition(":")[0], found, set())
    yield from found.items()


def _look_at(module: str, found: dict[str, str], seen: set[Path]) -> None:
    """Add what a module lacks, and what the packages above it lack, which are imported before it."""
    for name in accumulate(module.split("."), "{}.{}".format):
        if name not in sys.modules and (source := _source(name)) is not None:
            _look(source, name, found, seen)


def _look(source: Path, name: str, found: dict[str, str], seen: set[Path]) -> None:
    """Add what the file of the module ``name`` lacks; the name is empty for a file that is no module."""
    if source in seen:
        return
    seen.add(source)
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # importing it says it better
    package = name if source.name == "__init__.py" else name.rpartition(".")[0]
    for line, imported, relative in _imports(tree, package):
        top = imported.partition(".")[0]
        if name and top == name.partition(".")[0]:
            _look_at(imported, found, seen)
        elif not relative and not _is_there(top):
            found.setdefault(top, f"{source}:{line}")


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, full name and whether it is relative, of each module that is imported when the file is."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                kept = parents[: len(parents) - node.level + 1]
                base = ".".join([*kept, *([base] if base else [])])
            yield node.lineno, base, bool(node.level)
            # What is imported from a package of its own may be a module.
            yield from ((node.lineno, f"{base}.{alias.name}", True) for alias in node.names)


def _is_there(module: str) -> bool:
    return module in sys.modules or _spec(module) is not None


def _source(module: str) -> Path | None:
    """Return a module's file; None if there is none."""
    spec = _spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _spec(module: str) -> ModuleSpec | None:
    # find_spec of a module within a package imports the package, and of a name within a module the module.
    package = module.rpartition(".")[0]
    if package:
        above = _spec(package)
        folders = None if above is None else above.submodule_search_locations
        return None if folders is None else PathFinder.find_spec(module, folders)
    try:
        return find_spec(module)
    except (ImportError, ValueError):
        return None


def _requirement(module: str, distribution: Distribution | None) -> str:
    """Return what to install for a module: the requirement of that name, with the extra that has it, else its name."""
    # Of all that `rlhf --help` imports, nothing else needs its parser.
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for text in (distribution.requires or ()) if distribution is not None else ():
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) == canonicalize_name(module):
            return f"'{requirement.name}{requirement.specifier}'"
    return f"{module}   (if the package has the module's name)"
