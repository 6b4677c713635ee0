"""The first pass over the options: the components that the selectors pick, before other options are looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .. import code_reference
from ..capabilities import WRAPS_CODE
from ..component import Registered
from ..errors import ConfigError, PluginError, RLHFError
from ..plugins import Plugins
from ..registry import AnyRegistry
from .annotations import Mismatch, convert
from .layers import Layer, lookup
from .option_tree import OptionTree, Selector
from .problems import Labels, show, with_article
from .resolved import OptionsT


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A component that a selector picked."""

    slot: Selector
    written: str
    """The name as it was written."""
    registered: Registered[Any]
    section: str
    """Path of the section with its options."""
    names: frozenset[str]
    """Keys under which that section may be written: the component's name and its aliases."""
    wraps: str | None = None
    """The code reference that the component wraps."""

    @property
    def recorded(self) -> str:
        """The name that a run records: a code reference as it was written, else the qualified name."""
        is_code = code_reference.is_reference(self.written)
        return self.written if is_code else self.registered.qualified

    @property
    def owner(self) -> str:
        """The component's name and origin, for messages about its options."""
        return f"{self.registered.name} ({self.registered.origin})"


def select(
    tree: Layer, labels: Labels, plugins: Plugins, options: OptionTree[OptionsT]
) -> list[Choice]:
    """Return the components that the selectors name, in the selectors' order.

    Raises:
        ConfigError: a required selector is not set, a selector names no installed component, or two selected
            components would share a section.
        PluginError: a component has the name of an option of the section in which its own options would stand.
    """
    choices = [
        choice
        for slot in options.selectors
        for choice in select_slot(slot, tree, labels, plugins, options)
    ]
    seen: dict[str, Choice] = {}
    for choice in choices:
        if other := seen.get(choice.section):
            raise ConfigError(
                f"{labels(choice.slot.path)} {choice.written}: its options would stand in the section "
                f"{choice.section!r}, where those of {labels(other.slot.path)} {other.written} stand.\n"
                "  Choose it once, or give one of the two functions another name."
            )
        seen[choice.section] = choice
        if choice.registered.name in options.section_model(choice.slot).model_fields:
            raise PluginError(
                f"{labels(choice.slot.path)} {choice.written}: the section {choice.section!r} cannot hold its options, "
                f"because the core has an option of that name. {choice.registered.origin} has to rename the component."
            )
    return choices


def select_slot(
    slot: Selector, tree: Layer, labels: Labels, plugins: Plugins, options: OptionTree[OptionsT]
) -> list[Choice]:
    """Return the components that one selector names; none for an optional selector that is not set.

    Raises:
        ConfigError: the selector is required and not set, or names no installed component.
    """
    info = options.section_model(slot).model_fields[slot.path.rpartition(".")[2]]
    label = labels(slot.path)
    value = lookup(tree.values, slot.path)
    registry = plugins.registries[slot.hook]
    try:
        shape = tuple[str, ...] if slot.many else str | None
        named = None if value is None else convert(shape, value)
    except Mismatch as mismatch:
        raise ConfigError(f"{label}: {mismatch}; {_installed(registry)}") from None
    if isinstance(named, str):
        named = [named]
    if not named:
        if info.is_required():
            raise ConfigError(
                f"{label}: expected {with_article(registry.kind)}; {_installed(registry)}"
            )
        return []
    if not isinstance(named, list) or any(not isinstance(name, str) or not name for name in named):
        raise ConfigError(
            f"{label}: expected the name of {with_article(registry.kind)}, got {show(value)}; {_installed(registry)}"
        )
    return [_choose(slot, name, label, plugins) for name in named]


def written_names(slot: Selector, layers: Sequence[Layer]) -> Iterator[str]:
    """Yield every name that some layer, also an overridden one, gives to a selector; what is no name is left out."""
    for layer in layers:
        value = lookup(layer.values, slot.path)
        names = value if isinstance(value, list | tuple) else [value]
        yield from (name for name in names if isinstance(name, str))


def _choose(slot: Selector, name: str, label: str, plugins: Plugins) -> Choice:
    try:
        wrapper = _wrapper(plugins.registries[slot.hook])
        if code_reference.is_reference(name) and wrapper is not None:
            reference = code_reference.parse(name)
            reference.definition()
            plugins.loaded[str(reference.path)] = reference.origin
            return _choice(slot, name, wrapper, reference.name, wraps=name)
        registered = plugins.get(slot.hook, name)
    except RLHFError as error:
        raise type(error)(f"{label} {name}: {error}") from error
    return _choice(slot, name, registered, registered.name)


def _choice(
    slot: Selector,
    written: str,
    registered: Registered[Any],
    section: str,
    wraps: str | None = None,
) -> Choice:
    aliases = () if wraps else registered.component.aliases
    return Choice(
        slot=slot,
        written=written,
        registered=registered,
        section=f"{slot.section}.{section}",
        names=frozenset({section, *aliases}),
        wraps=wraps,
    )


def _wrapper(registry: AnyRegistry) -> Registered[Any] | None:
    found = [entry for entry in registry if WRAPS_CODE in entry.component.provides]
    if len(found) > 1:
        names = ", ".join(entry.qualified for entry in found)
        raise ConfigError(
            f"several components wrap code ({names}); uninstall all but one of these plugins"
        )
    return found[0] if found else None


def _installed(registry: AnyRegistry) -> str:
    names = registry.names()
    return (
        f"installed: {', '.join(names)}"
        if names
        else f"no plugin with {with_article(registry.kind)} is installed"
    )
