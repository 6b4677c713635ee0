"""Loader of plugins. It replaces pluggy's, because one broken plugin must never take the others down.

pluggy's entry-point loader lets an import error of one plugin reach the host and silently skips the second of
two plugins with one name. Here the steps are separate: find (metadata only, sorted), register (isolated, all or
nothing per plugin), and each failure stays attached to the distribution that caused it.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import metadata
from typing import Any

import pluggy

from . import capabilities, code_reference, hookspecs
from .component import Component, ComponentRef, Config, Registered, origin_of
from .errors import PluginError, UnknownComponent, wrong_answer
from .problem import headline
from .registry import AnyRegistry, Registry

FAMILY = "rlhf.plugins.v"
API_VERSION = "1"
GIVEN = "python"
"""Stands for a plugin in the names of components that a Python program gave as objects: ``python:my_reward``."""
GROUP = FAMILY + API_VERSION
FORMER = "rlhf.plugins.former"
"""Group of entry points by which a distribution says which plugins have become a part of it: name = module."""

_CORE = re.compile(r"^Requires-Dist: *rlhf[-_.]core\b", re.MULTILINE)
"""Beginning of a requirement of the core, as wheels write it."""

_METHODS = {
    "rlhf_train_backends": ("setup", "train_step", "close"),
    "rlhf_engines": ("start", "generate", "close"),
    "rlhf_model_adapters": ("served_rank", "load_options", "wrap"),
    "rlhf_optimizers": ("parameter_groups", "create"),
    "rlhf_runtimes": ("start", "close"),
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin as found, before any of its code ran."""

    name: str
    entry_point: metadata.EntryPoint
    distribution: metadata.Distribution | None
    former: Mapping[str, str] = field(default_factory=dict)
    """Names of the plugins that have become a part of this one, with the module that each was."""

    @property
    def origin(self) -> str:
        if self.distribution is None:
            return f"module {self.entry_point.value}"
        return origin_of(self.distribution)


@dataclass(frozen=True, slots=True)
class FailedPlugin:
    """A plugin that could not be used, and why."""

    name: str
    origin: str
    error: Exception

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.origin}) is not usable: {self.error}"


@dataclass(slots=True)
class Plugins:
    """The plugins of one process. Built once in ``main`` and passed down; there is no global instance."""

    manager: pluggy.PluginManager
    registries: dict[str, AnyRegistry]
    loaded: dict[str, str] = field(default_factory=dict)
    """Plugin name -> ``distribution version``."""
    failed: list[FailedPlugin] = field(default_factory=list)

    def get(self, hook: str, name: str) -> Registered[Any]:
        """Return the component ``name`` of the kind of ``hook``.

        A name such as ``path/file.py:attribute`` is a component in a user's file; the file's hash is then recorded
        among the loaded plugins.

        Raises:
            UnknownComponent: no plugin provides the name. The message lists plugins that failed to load, since one of
                them may have provided it.
            AmbiguousComponent: several plugins provide the name.
            ConfigError: the file that the name refers to has no such component.
        """
        if code_reference.is_reference(name):
            reference = code_reference.parse(name)
            registered = reference.register(hook)
            capabilities.check_words(registered.component)
            self.loaded[registered.plugin] = reference.origin
            return registered
        try:
            return self.registries[hook].get(name)
        except UnknownComponent as error:
            if name.startswith(f"{GIVEN}:"):
                raise UnknownComponent(
                    f"{error}\n  It was an object of a Python program. Give it again to rlhf.train, or write it into "
                    "a file and name it FILE.py:NAME.",
                    code="plugin/object-lost",
                ) from error
            if not (failed := self.failed + unregistered()):
                raise
            shown = [str(failure).partition("\n")[0] for failure in failed[:2]]
            if len(failed) > 2:
                shown.append(f"and {len(failed) - 2} more, see: rlhf plugins")
            reasons = "\n  ".join(shown)
            raise error.with_text(f"{error}\n  {reasons}") from failed[0].error

    def build(self, ref: ComponentRef) -> Any:
        """Validate a reference's options and build the component."""
        registered = self.get(ref.kind, ref.name)
        return require_methods(
            ref.kind, registered, registered.build(registered.validate(ref.options))
        )

    def loggers(self) -> list[logging.Logger]:
        """Return the topmost logger of the core, of each plugin and of each library that plugins build on.

        Their levels and handlers hold for all loggers below them.
        """
        modules = [str(getattr(m, "__name__", name)) for name, m in self.manager.list_name_plugin()]
        tops = (module.partition(".")[0] for module in modules)
        names = dict.fromkeys(["rlhf_core", *tops, *_without_plugin()])
        return [logging.getLogger(name) for name in names]


def load(words: str | None = None, *, component: str | None = None) -> Plugins:
    """Return all installed plugins, found, registered and validated; those that fail are in ``Plugins.failed``.

    Args:
        words: ``"my_module,no:acme"`` registers the importable module ``my_module`` and leaves the plugin ``acme`` out;
            a name of no plugin is a failed one. None: the value of the environment variable ``RLHF_PLUGINS``.
        component: the only one that is asked for, in a process that starts sooner without the plugins of others. If it
            is written ``plugin:component``, that plugin alone is registered, and none for one in a user's file; a
            name without its plugin may be anybody's, so all are.
    """
    text = os.environ.get("RLHF_PLUGINS", "") if words is None else words
    asked = [word for word in map(str.strip, text.split(",")) if word]
    excluded = {word.removeprefix("no:") for word in asked if word.startswith("no:")}
    plugins = empty()
    modules = (word for word in asked if not word.startswith("no:"))
    named = [Candidate(name, metadata.EntryPoint(name, name, GROUP), None) for name in modules]
    candidates = [*find(), *named]
    clashes = _clashing_names(candidates)
    names = {candidate.name for candidate in candidates}
    for name in sorted(excluded - names):
        near = "".join(f" Did you mean no:{each}?" for each in get_close_matches(name, names, n=1))
        nothing = PluginError(f"no plugin has this name.{near}", code="plugin/nothing-left-out")
        plugins.failed.append(FailedPlugin(name, "left out by RLHF_PLUGINS", nothing))
    parts = {module: each.origin for each in candidates for module in each.former.values()}
    for candidate in candidates:
        if candidate.name in excluded or not _may_provide(candidate, component):
            continue
        try:
            if (new := parts.get(candidate.entry_point.value)) and candidate.distribution:
                old = candidate.origin.partition(" ")[0]
                raise PluginError(
                    f"it has become a part of {new}, which has the module {candidate.entry_point.value} too.\n"
                    f"  pip uninstall {old}; pip install --force-reinstall {new.partition(' ')[0]}",
                    code="plugin/moved",
                )
            if others := clashes.get(candidate.name):
                problem = f"{' and '.join(others)} both use this name; uninstall one of them"
                raise PluginError(problem, code="plugin/name-taken")
            register(plugins, candidate)
        except Exception as error:  # a plugin may raise anything; it stays with that plugin
            plugins.failed.append(FailedPlugin(candidate.name, candidate.origin, error))
        except SystemExit as error:
            failure = PluginError(f"it {headline(error)}", code="plugin/exited")
            failure.__cause__ = error
            plugins.failed.append(FailedPlugin(candidate.name, candidate.origin, failure))
    return plugins


def _may_provide(plugin: Candidate, component: str | None) -> bool:
    """Return whether a plugin may have the component of this name, None standing for any component."""
    if component is None:
        return True
    if code_reference.is_reference(component):
        return False
    owner, colon, _ = component.partition(":")
    return not colon or owner == plugin.name or owner in plugin.former


def require_methods(kind: str, registered: Registered[Any], built: Any) -> Any:
    """Return what a component's factory built.

    Raises:
        PluginError: it lacks a method of its kind that each run calls.
    """
    if lacks := [name for name in _METHODS.get(kind, ()) if not hasattr(built, name)]:
        who, wanted = f"{registered.label}: its factory", f"an object with {', '.join(lacks)}"
        raise wrong_answer(who, built, wanted)
    return built


def empty() -> Plugins:
    """Return plugins with every hook declared and nothing registered."""
    manager = pluggy.PluginManager("rlhf")
    manager.add_hookspecs(hookspecs)
    registries: dict[str, AnyRegistry] = {
        hook: Registry(hook, kind) for hook, kind in hookspecs.COMPONENT_HOOKS.items()
    }
    return Plugins(manager, registries)


def find() -> list[Candidate]:
    """Return all plugins in installed distributions' metadata, of any hook API version; runs none of their code."""
    found: dict[tuple[str, str, str], Candidate] = {}
    for distribution in metadata.distributions():
        points = distribution.entry_points
        for entry_point in points:
            if entry_point.group.startswith(FAMILY):
                name = _plugin_name(origin_of(distribution).partition(" ")[0])
                former = {point.name: point.value for point in points if point.group == FORMER}
                # An editable install can be listed twice.
                key = (name, entry_point.group, entry_point.value)
                found.setdefault(key, Candidate(name, entry_point, distribution, former))
    return [found[key] for key in sorted(found)]


def register(plugins: Plugins, candidate: Candidate) -> None:
    """Import a plugin and add its components: all of them or none.

    Raises:
        PluginError: the plugin has another hook API version, a name that does not fit its distribution, a hook that
            there is not, two components of one name, or a hook that returned something else than components.
        Exception: any error that importing the plugin raises.
    """
    entry_point = candidate.entry_point
    if entry_point.group != GROUP:
        raise PluginError(
            f"it is written for hook API {entry_point.group.removeprefix(FAMILY)}, this core has {API_VERSION}; "
            f"install a version of it with an entry point in {GROUP!r}",
            code="plugin/other-api",
        )
    if candidate.distribution is not None and entry_point.name != candidate.name:
        problem = f"its entry point is {entry_point.name!r}; the name that fits the distribution is {candidate.name!r}"
        raise PluginError(problem, code="plugin/wrong-entry-point")
    module = entry_point.load()
    hooks = vars(plugins.manager.hook)
    for name, made in inspect.getmembers(module, inspect.isfunction):
        mark = vars(made).get("rlhf_impl")
        # The core's own declaration of a hook, imported by its name, has the mark rlhf_spec.
        if name in hooks and not mark and not hasattr(made, "rlhf_spec"):
            problem = f"its function {name} has the name of a hook but no @hookimpl; write @hookimpl above it"
            raise PluginError(problem, code="plugin/unmarked-hook")
        if mark and (mark["specname"] or name) not in hooks and not mark["optionalhook"]:
            near = "".join(f" Did you mean {each}?" for each in get_close_matches(name, hooks, n=1))
            raise PluginError(f"unknown hook {name!r}.{near}", code="plugin/unknown-hook")
    try:
        plugins.manager.register(module, name=candidate.name)
        entries = _components_of(plugins, candidate)
    except BaseException:
        if plugins.manager.has_plugin(candidate.name):
            plugins.manager.unregister(name=candidate.name)
        raise
    for hook, entry in entries:
        plugins.registries[hook].add(entry)
    plugins.loaded[candidate.name] = candidate.origin


def unregistered() -> list[FailedPlugin]:
    """Return installed distributions that are plugins by their names, and register none."""
    found = []
    for name, distribution in _without_plugin().items():
        if name.startswith(("rlhf_plugin_", "rlhf_env_")):
            own = _plugin_name(name)
            problem = f"it has no entry point in {GROUP!r}, so nothing of it is found. Add {own} = {name!r} "
            problem += f'below [project.entry-points."{GROUP}"] of its pyproject.toml, and install it again.'
            error = PluginError(problem, code="plugin/no-entry-point")
            found.append(FailedPlugin(own, origin_of(distribution), error))
    return found


def _without_plugin() -> dict[str, metadata.Distribution]:
    """Return the installed distributions that require the core and register no plugin, by module, sorted."""
    found = {
        distribution.metadata["Name"].replace("-", "_"): distribution
        for distribution in metadata.distributions()
        if _CORE.search(_header(distribution))
        and not any(point.group.startswith(FAMILY) for point in distribution.entry_points)
    }
    return dict(sorted(found.items()))


def _header(distribution: metadata.Distribution) -> str:
    """Return the metadata without the description, as text: parsing those of every distribution would take longer than
    to load all plugins."""
    return (distribution.read_text("METADATA") or "").partition("\n\n")[0]


def _components_of(plugins: Plugins, candidate: Candidate) -> list[tuple[str, Registered[Any]]]:
    entries: list[tuple[str, Registered[Any]]] = []
    former = tuple(candidate.former)
    for hook in hookspecs.COMPONENT_HOOKS:
        seen: set[str] = set()
        for implementation in getattr(plugins.manager.hook, hook).get_hookimpls():
            if implementation.plugin_name != candidate.name:
                continue
            for component in _checked(hook, implementation.function()):
                for name in (component.name, *component.aliases):
                    if name in seen:
                        problem = f"{hook} returns two components called {name!r}"
                        raise PluginError(problem, code="plugin/repeated-component")
                    seen.add(name)
                entry = Registered(component, candidate.name, candidate.distribution, former)
                entries.append((hook, entry))
    return entries


def _checked(hook: str, returned: Iterable[Any]) -> list[Component[Any]]:
    if not isinstance(returned, list | tuple):
        problem = f"{hook} returned {type(returned).__name__}; expected a list of Component"
        raise PluginError(problem, code="plugin/no-components")
    for item in returned:
        if not isinstance(item, Component):
            problem = f"{hook} returned a {type(item).__name__} in its list; expected Component"
            raise PluginError(problem, code="plugin/no-components")
        if not (isinstance(item.config, type) and issubclass(item.config, Config)):
            problem = f"component {item.name!r}: expected a subclass of rlhf_core.Config as config, got {item.config!r}"
            raise PluginError(problem, code="plugin/no-config")
        capabilities.check_words(item)
    return list(returned)


def _plugin_name(distribution: str) -> str:
    """Return a plugin's name: ``acme`` for ``rlhf-plugin-acme``, ``env_maze`` for ``rlhf-env-maze``."""
    name = distribution.lower().replace("_", "-").replace(".", "-")
    return name.removeprefix("rlhf-plugin-").removeprefix("rlhf-").replace("-", "_")


def _clashing_names(candidates: Iterable[Candidate]) -> Mapping[str, list[str]]:
    origins: dict[str, list[str]] = {}
    for candidate in candidates:
        origins.setdefault(candidate.name, []).append(candidate.origin)
    return {name: found for name, found in origins.items() if len(found) > 1}
