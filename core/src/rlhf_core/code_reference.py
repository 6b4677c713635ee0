"""Components in a user's own file, named as ``path/file.py:attribute``.

The attribute is a class (made with its config, or without arguments), a function (used as the component itself, for
the kinds that are called), or a ``Component``. A class that a ``Component`` of the same file describes stands for that
component, with its options and needs: a plugin in one file is the same component by its file as by its registered name.

The file is only parsed where its source shows all that the configuration has to know. It is imported for a
``Component``, a class that one describes, or a class that takes a config, since their options are known only then.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from .called import CALLED_KINDS, check_definition
from .component import Component, Config, Registered
from .errors import ConfigError


def is_reference(name: str) -> bool:
    """True for ``path/file.py:attribute``, also if written wrongly; names of components have no dot or slash."""
    left, colon, _ = name.rpartition(":")
    return name.endswith(".py") or (bool(colon) and ("/" in left or left.endswith(".py")))


def parse(text: str) -> CodeReference:
    """Return the reference that ``text`` writes.

    Raises:
        ConfigError: the attribute is missing or is not a name.
    """
    left, _, attribute = text.rpartition(":")
    if text.endswith(".py") or not attribute.isidentifier():
        problem = f"expected FILE.py:NAME, got {text!r}; add a colon and the name in the file"
        raise ConfigError(problem, code="config/no-name-in-file")
    return CodeReference(Path(left), attribute)


@dataclass(frozen=True, slots=True)
class CodeReference:
    """A name in a Python file. Calling it makes the component, so it also serves as a factory."""

    path: Path
    """As written: relative paths start at the working directory."""
    attribute: str
    """A name at the top level of the file, or its snake-case form."""

    @property
    def name(self) -> str:
        """The component's name: the attribute in snake case."""
        return snake_case(self.attribute) or "code"

    @property
    def code_file(self) -> str:
        """The file as tracebacks have it."""
        return str(self.path.resolve())

    @property
    def origin(self) -> str:
        """The file's digest, as a run records it in the place of a plugin's version."""
        return f"file, sha256 {hashlib.sha256(self._bytes()).hexdigest()}"

    def definition(self) -> ast.stmt:
        """Return the statement that defines the attribute, without importing the file.

        Raises:
            ConfigError: the file does not exist or is not Python, or does not define the name.
        """
        defined = {name: node for node in self._statements() for name in _names(node)}
        if self.attribute in defined:
            return defined[self.attribute]
        same = [name for name in defined if CodeReference(self.path, name).name == self.attribute]
        if len(same) == 1:
            return defined[same[0]]
        near = difflib.get_close_matches(self.attribute, defined, n=1)
        own = [name for name, node in defined.items() if not isinstance(node, ast.ImportFrom)]
        hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(own) or 'nothing'}"
        raise ConfigError(
            f"{self.path} defines no {self.attribute!r}. {hint}", code="config/not-in-file"
        )

    def _statements(self) -> list[ast.stmt]:
        source = self._bytes()
        try:
            return ast.parse(source, filename=str(self.path)).body
        except (SyntaxError, ValueError) as error:
            raise ConfigError(
                f"{self.path} is not valid Python: {error}", code="config/invalid-python"
            ) from error

    def register(self, hook: str) -> Registered[Any]:
        """Return the component as if a plugin with the file's path as its name had registered it.

        Raises:
            ConfigError: the file or the name does not exist, importing the file fails, or the attribute cannot be a
                component of this kind.
        """
        node = self.definition()
        if hook in CALLED_KINDS:
            check_definition(node, hook, f"{self.path}:{self.attribute}")
        if isinstance(node, ast.FunctionDef) and hook in CALLED_KINDS:
            return self._registered(Config, ast.get_docstring(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise ConfigError(
                f"{self.path}:{self.attribute} is {'an async' if node.__class__ is ast.AsyncFunctionDef else 'a'} "
                "function; this kind of component has to be a class, or a Component",
                code="config/function-for-class",
            )
        if isinstance(node, ast.ClassDef) and _takes_nothing(node) and not self._is_factory(node):
            return self._registered(Config, ast.get_docstring(node))
        loaded = self.load()
        component = loaded if isinstance(loaded, Component) else self._description(loaded)
        if component is not None:
            return Registered(replace(component, name=self.name, aliases=()), str(self.path))
        if not isinstance(loaded, type):
            raise ConfigError(
                f"{self.path}:{self.attribute} is a {type(loaded).__name__}; "
                "expected a class, a function or a Component",
                code="config/no-component",
            )
        return self._registered(config_of(loaded) or Config, inspect.getdoc(loaded))

    def load(self) -> Any:
        """Import the file, under a name that no other file or version of it has, and return the attribute.

        Raises:
            ConfigError: the file raises while it is imported.
        """
        names = _names(self.definition())
        same = (name for name in names if CodeReference(self.path, name).name == self.attribute)
        attribute = self.attribute if self.attribute in names else next(same)
        return getattr(_import(self.path, self._bytes()), attribute)

    def _is_factory(self, node: ast.ClassDef) -> bool:
        """True when some call in the file has ``factory=`` the class."""
        return any(
            keyword.arg == "factory" and ast.unparse(keyword.value) == node.name
            for statement in self._statements()
            for keyword in ast.walk(statement)
            if isinstance(keyword, ast.keyword)
        )

    def _description(self, loaded: object) -> Component[Any] | None:
        """Return the file's ``Component`` whose factory is ``loaded``, or None; of several, the one with its name."""
        found = {
            name: value
            for name, value in vars(_import(self.path, self._bytes())).items()
            if isinstance(value, Component) and value.factory is loaded
        }
        same = [value for value in found.values() if value.name == self.name]
        if len(found) > 1 and not same:
            raise ConfigError(
                f"{self.path}: {', '.join(found)} all describe {self.attribute}; name the one that is meant, as "
                f"{self.path}:{next(iter(found))}",
                code="config/several-descriptions",
            )
        return next(iter([*same, *found.values()]), None)

    def __call__(self, config: Config) -> Any:
        """Make the component."""
        loaded = self.load()
        return made(loaded, config) if isinstance(loaded, type) else loaded

    def _registered(self, config: type[Config], doc: str | None) -> Registered[Any]:
        summary = (doc or "").strip().partition("\n")[0]
        component: Component[Any] = Component(
            name=self.name, factory=self, config=config, summary=summary
        )
        return Registered(component, str(self.path))

    def _bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            where = f" (looked in {Path.cwd()})" if not self.path.is_absolute() else ""
            problem = f"cannot read {str(self.path)!r}: {error.strerror}{where}"
            raise ConfigError(problem, code="config/unreadable-code") from error


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        parts = (part for target in node.targets for part in getattr(target, "elts", [target]))
        return [part.id for part in parts if isinstance(part, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        return [node.target.id]
    aliases = node.names if isinstance(node, ast.ImportFrom) else []
    return [alias.asname or alias.name for alias in aliases]


def _takes_nothing(node: ast.ClassDef) -> bool:
    """True when the source shows that the class is made without arguments."""
    if node.bases or node.decorator_list or node.keywords:
        return False
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            arguments = statement.args
            return len(arguments.posonlyargs + arguments.args) == 1 and not arguments.vararg
    return True


def _takes_config(made: Callable[..., Any]) -> bool:
    """Return whether there is an argument by which the config can be passed."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)


def snake_case(name: str) -> str:
    """Return ``MyReward`` as ``my_reward``, without underscores at either end."""
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3_\2\4", name)
    return words.lower().strip("_")


def made(loaded: type, config: Config) -> Any:
    """Return an instance of a class, made with its config or, if it takes none, without arguments."""
    return loaded(config) if _takes_config(loaded) else loaded()


def config_of(loaded: type) -> type[Config] | None:
    """Return the Config that a class takes, by the annotation of its first argument, or None if it takes no argument.

    Without an annotation, an argument called ``config`` gets a Config without options.

    Raises:
        ConfigError: the class takes something else.
    """
    if not _takes_config(loaded):
        return None
    name, argument = next(iter(inspect.signature(loaded).parameters.items()))
    if name == "config" and argument.annotation is argument.empty:
        return Config
    try:
        annotation = inspect.signature(loaded, eval_str=True).parameters[name].annotation
    except (NameError, TypeError):
        annotation = None
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return annotation
    raise ConfigError(
        f"{loaded.__name__}: expected a class that takes nothing, or one argument annotated with a subclass of "
        f"rlhf_core.Config (or called config, for no options); its argument is {name!r}",
        code="config/class-with-other-arguments",
    )


class _SourceOnly(SourceLoader):
    """Loads a module from the bytes of its source. Python's own loader would take the bytecode of an earlier version
    that was as long and of the same second."""

    def __init__(self, path: Path, source: bytes) -> None:
        self._path, self._source = path, source

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: str | bytes) -> bytes:
        return self._source


def _import(path: Path, source: bytes) -> ModuleType:
    resolved = path.resolve()
    digest = hashlib.sha256(str(resolved).encode() + b"\0" + source).hexdigest()[:16]
    name = f"rlhf_code_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        name, resolved, loader=_SourceOnly(resolved, source)
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(resolved.parent) not in sys.path:
        # At the end, so that a helper beside the file can be imported, but can shadow nothing that is installed.
        sys.path.append(str(resolved.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise ConfigError(
            f"importing {path} failed: {type(error).__name__}: {error}", code="config/import-failed"
        ) from error
    return module
