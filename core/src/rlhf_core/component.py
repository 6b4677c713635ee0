"""Descriptions of components, which plugins register. Nothing heavy is imported until a run chooses a component.

A component that needs no more than torch stands in one file: options, formula, class and, last, its ``Component``. With
``rlhf_core.lazy`` such a file imports nothing heavy. A component that needs a slow library names its class as a string.
"""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, version
from types import FrameType
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from .errors import MissingDependency, PluginError, RLHFError, wrong_answer

ProductT = TypeVar("ProductT")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NOTE = "in plugin "
"""Start of the note by which an exception names a plugin."""


class Config(BaseModel):
    """Base of every options model: frozen, unknown keys refused, NaN and infinity refused.

    A module that defines an options model must not import torch: help and validation read it at start-up.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    def needed_by_options(self) -> frozenset[str]:
        """Return the capabilities that these option values need, beside the component's own ``needs``."""
        return frozenset()

    def excluded_by_options(self) -> frozenset[str]:
        """Return the capabilities that must be absent with these option values, beside the component's conflicts. One
        that the component itself provides is not there with them."""
        return frozenset()

    def without_effect(self) -> Mapping[str, str]:
        """Return the options that change nothing with these option values, each with the reason and the way out. A
        command refuses one that was typed for it."""
        return {}

    def tokenizer_of_ids(self) -> str | None:
        """Return the folder or hub name of the tokenizer by which the component reads the policy's token ids, which has
        to give them the same tokens; None: it reads no ids."""
        return None

    def continued_from(self) -> str | None:
        """Return the folder of an earlier training, such as an adapter's, that the component continues from; None: it
        starts over. A run's reference is then what is in it, and a resumed run is told if its files have changed."""
        return None

    def variables_read(self) -> frozenset[str]:
        """Return the names of environment variables that the component reads with these option values, such as the one
        with its token. A process of its own gets no others than the usual ones and those of ``pass_env``."""
        return frozenset()

    def columns_needed(self) -> Mapping[str, str | None]:
        """Return the columns of data rows without which the component can do nothing with these option values, each
        with the option that names it; None: no option does. A run, and ``--check``, refuse a column that no row has."""
        return {}

    def rewards_named(self) -> Mapping[str, str]:
        """Return the names of rewards that the component asks for with these option values, each with the option that
        names it. A run whose rewards are all named in its options refuses another one before it starts."""
        return {}

    def metrics_named(self) -> Mapping[str, str]:
        """Return the names of recorded metrics that the component waits for with these option values, each with the
        option that names it. A run refuses one of evaluations (``eval/...``) that none of its evaluations gives."""
        return {}

    def row_problem(self, row: Mapping[str, Any]) -> str | None:
        """Return what keeps the component from using a row with the columns of ``columns_needed``; None: nothing."""
        return None

    @classmethod
    def columns_of(cls, code: Callable[..., Any]) -> Mapping[str, str | None]:
        """Return what ``columns_needed`` says of a function that a Python program gave a component that wraps code."""
        return {}

    def check_outside(self) -> None:
        """Check what these options name outside of the configuration, such as a function in a file of the user's.

        It is called before a run starts, and by ``--check`` and ``--dry-run``. The default checks nothing.

        Raises:
            ConfigError: something is missing, or not what it should be.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Generic[ProductT]):
    """Description of a component, which a run can choose by name. Its kind is that of the hook that returns it.

    Raises:
        PluginError: the name or the factory is not written as described below.
    """

    name: str
    """Name that users type: lower case letters, digits and underscores, starting with a letter."""
    factory: str | Callable[..., ProductT]
    """Maker of the component, called as ``factory(config)`` when a run has chosen it: the class, or
    ``"module:callable"`` where importing the class is slow, so that it is imported only then."""
    config: type[Config] = Config
    """The component's options, in a module that imports nothing heavy."""
    summary: str = ""
    """One line, shown by ``rlhf plugins`` and in help."""
    needs: frozenset[str] = frozenset()
    """Capabilities that the run must supply: see ``rlhf_core.capabilities``."""
    conflicts: frozenset[str] = frozenset()
    """Capabilities that must be absent from the run."""
    provides: frozenset[str] = frozenset()
    """Capabilities that choosing this component adds to the run."""
    aliases: tuple[str, ...] = ()
    """Other names by which it can be chosen."""
    extra: str | None = None
    """Name of the distribution's extra whose requirements the component needs at run time. They are checked before the
    factory is imported or called, whether it is a class or a string."""
    suits: str | None = None
    """``"module:function"``, called with a ``contracts.ChoiceSetting`` where the component's selector says ``auto``. It
    returns a ``contracts.Suitability``, and its module imports nothing heavy. None: ``auto`` never chooses it."""

    def __post_init__(self) -> None:
        for name in (self.name, *self.aliases):
            if not _NAME.fullmatch(name):
                raise PluginError(
                    f"component name {name!r}: expected lower case letters, digits and underscores, such as 'my_loss'",
                    code="plugin/malformed-name",
                )
        for label, reference in (("factory", self.factory), ("suits", self.suits)):
            if isinstance(reference, str) and not _FACTORY.fullmatch(reference):
                raise PluginError(
                    f"{label} {reference!r} of component {self.name!r}: expected 'package.module:callable'",
                    code="plugin/malformed-reference",
                )
        for label in ("needs", "conflicts", "provides"):
            object.__setattr__(self, label, frozenset(getattr(self, label)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRef:
    """A component as it crosses process boundaries: a name and plain option values, never a class."""

    kind: str
    """The hook that registers it, such as ``rlhf_policy_losses``."""
    name: str
    """Qualified name: ``plugin:component``."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Registered(Generic[ProductT]):
    """A component, and the plugin that registered it."""

    component: Component[ProductT]
    plugin: str
    """Name of the plugin, derived from its distribution's."""
    distribution: Distribution | None = field(default=None, compare=False)
    """None for a module or file that the user named."""
    former: tuple[str, ...] = field(default=(), compare=False)
    """Names of plugins that have become a part of this one; for one release a component is found by them too."""

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def qualified(self) -> str:
        """``plugin:name``, unique in an environment; runs record it."""
        return f"{self.plugin}:{self.component.name}"

    def is_called(self, name: str) -> bool:
        """Return whether ``name``, bare or as ``plugin:name``, means this component; aliases and former names too."""
        plugin, _, bare = name.rpartition(":")
        names = (self.component.name, *self.component.aliases)
        return bare in names and plugin in ("", self.plugin, *self.former)

    @property
    def origin(self) -> str:
        """``distribution version``, for messages."""
        return self.plugin if self.distribution is None else origin_of(self.distribution)

    @property
    def label(self) -> str:
        """``plugin:name (distribution version)``, for messages."""
        return f"{self.qualified} ({self.origin})"

    def load(self) -> Callable[..., ProductT]:
        """Return the factory, imported if it is a string.

        Raises:
            MissingDependency: the component's extra is not installed.
            PluginError: the factory's module lacks the named callable.
        """
        if missing := missing_requirements(self.distribution, self.component.extra):
            assert self.distribution is not None
            raise MissingDependency(
                f"{self.qualified} needs {', '.join(missing)}.\n"
                f"  pip install '{self.distribution.metadata['Name']}[{self.component.extra}]'"
            )
        if not isinstance(self.component.factory, str):
            return self.component.factory
        return self.imported(self.component.factory)

    def imported(self, reference: str) -> Callable[..., Any]:
        """Return what one of the component's references ``module:callable`` names.

        Raises:
            PluginError: the module lacks it.
        """
        module, _, attribute = reference.partition(":")
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except AttributeError as error:
            problem = f"{self.label}: module {module!r} has no {attribute!r}"
            raise PluginError(problem, code="plugin/no-factory") from error
        return found

    def build(self, config: Config | None = None) -> ProductT:
        """Import the component and call its factory with ``config`` (its defaults when None).

        An exception from the plugin's code keeps its type and gains a note that names the plugin.

        Raises:
            PluginError: the factory returned None, as one does that lacks its ``return``.
        """
        try:
            built = self.load()(config if config is not None else self.component.config())
        except Exception as error:
            error.add_note(_note([self]))
            raise
        if built is None:
            raise wrong_answer(f"{self.label}: its factory", built, "the component")
        return built

    def validate(self, options: Mapping[str, Any]) -> Config:
        """Return the component's config for ``options``.

        Raises:
            pydantic.ValidationError: an option is unknown, or its value is of the wrong type or out of range.
        """
        return self.component.config.model_validate(dict(options))

    def source(self) -> str | None:
        """Return ``file:line`` of the factory, without importing it where that is possible; None if not found."""
        factory = self.component.factory
        if not isinstance(factory, str):
            try:
                return f"{inspect.getsourcefile(factory)}:{inspect.getsourcelines(factory)[1]}"
            except (OSError, TypeError):
                return None
        return _find_definition(*_defined_in(self))


def name_component(error: BaseException, components: Iterable[Registered[Any]]) -> str:
    """Note on an exception which component's code raised it, and return the note.

    Of the calls that led to it, the innermost one that belongs to a component decides: an environment that an executor
    of another plugin calls is named, and not the executor.

    Args:
        components: the components that the run has chosen.

    Returns:
        The note; empty for the errors of this project, whose messages say it themselves, for interrupts, and where no
        call belongs to a component.
    """
    if isinstance(error, RLHFError) or not isinstance(error, Exception):
        return ""
    noted = [note for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    if noted:
        return str(noted[0])
    owners: dict[str, list[Registered[Any]]] = {}
    for entry in components:
        owners.setdefault(_defined_in(entry)[0], []).append(entry)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    for number, frame in enumerate(frames):
        if entries := _owners_of(frame, owners):
            note = _note(_narrowed(entries, frames[number:]))
            error.add_note(note)
            return note
    return ""


def _owners_of(
    frame: FrameType, owners: Mapping[str, list[Registered[Any]]]
) -> list[Registered[Any]] | None:
    """Return the components whose module, or whose file, the frame's code is of."""
    return owners.get(frame.f_globals.get("__name__", "")) or owners.get(frame.f_code.co_filename)


def _narrowed(
    entries: list[Registered[Any]], frames: Iterable[FrameType]
) -> Sequence[Registered[Any]]:
    """Return those of a module's components that the innermost frame of their own code is of; all, if none is."""
    for frame in frames:
        name = frame.f_code.co_qualname
        if own := [one for one in entries if f"{name}.".startswith(f"{_defined_in(one)[1]}.")]:
            return own
    return entries


def _note(entries: Sequence[Registered[Any]]) -> str:
    """Name the component, or only the plugin where a module has several components of it."""
    first = entries[0]
    note = f"{_NOTE}{first.plugin} ({first.origin})"
    return note if len({entry.name for entry in entries}) > 1 else f"{note}, component {first.name}"


def _defined_in(entry: Registered[Any]) -> tuple[str, str]:
    """Return the module of a component's factory, or the file of a user's, and its name there; nothing is imported."""
    factory = entry.component.factory
    if isinstance(factory, str):
        module, _, name = factory.partition(":")
        return module, name
    place = getattr(factory, "code_file", None) or getattr(factory, "__module__", "")
    called = getattr(factory, "attribute", None) or getattr(factory, "__qualname__", "")
    return str(place), str(called)


@lru_cache(maxsize=1024)
def origin_of(distribution: Distribution) -> str:
    """Return ``distribution version``. A distribution parses its metadata at every look, so one look does for all."""
    found = distribution.metadata
    return f"{found['Name']} {found['Version']}"


def missing_requirements(distribution: Distribution | None, extra: str | None) -> list[str]:
    """Return the requirements of ``extra``, in the distribution's metadata, that this environment does not meet."""
    if distribution is None or extra is None:
        return []
    # Of all that `rlhf --help` imports, nothing else needs its parser.
    from packaging.requirements import Requirement

    missing = []
    for text in distribution.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        needed = [marker is None or marker.evaluate({"extra": word}) for word in ("", extra)]
        if needed != [False, True]:
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            missing.append(f"{requirement.name}{requirement.specifier} (not installed)")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            missing.append(f"{requirement.name}{requirement.specifier} (found {found})")
    return missing


def _find_definition(module: str, attribute: str) -> str | None:
    import ast
    from importlib.util import find_spec

    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    with open(spec.origin, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in tree.body:
        if getattr(node, "name", None) == attribute:
            return f"{spec.origin}:{node.lineno}"
    return spec.origin
