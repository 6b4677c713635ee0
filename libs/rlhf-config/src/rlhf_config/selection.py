"""The first pass over the options: the components that the selectors pick, before other options are looked at."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_core import code_reference
from rlhf_core.capabilities import WRAPS_CODE
from rlhf_core.component import Component, Registered
from rlhf_core.contracts.engine import Accelerator, ChoiceSetting
from rlhf_core.errors import ConfigError, PluginError, RLHFError
from rlhf_core.plugins import Plugins
from rlhf_core.registry import AnyRegistry

from .annotations import Mismatch, convert
from .automatic.accelerators import visible_accelerators
from .automatic.choosing import AUTO, best, may_choose, model_config
from .files import read_toml
from .layers import Layer, Words, leaves, lookup
from .option_tree import OptionTree, Selector
from .paths import folder_to_resume
from .problems import Labels, show, with_article
from .resolved import OptionsT

_LABEL = re.compile(r"([a-z][a-z0-9_]*)=(.+)", re.DOTALL)
_SHARE = re.compile(r"(.+)=([+-]?(?:\d|\.\d|inf|nan)[^=]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SelectorEntry:
    """An entry of a selector, in its parts."""

    name: str
    """The component's name, or a code reference."""
    label: str | None = None
    """Name of the section with its options; None: the component's name."""
    share: str | None = None
    """The option ``share``, as it was written."""

    @classmethod
    def of(cls, slot: Selector, written: str) -> SelectorEntry:
        """Return the parts of an entry: ``NAME``, and with a labeled selector ``LABEL=NAME=SHARE``."""
        if not slot.labeled or os.path.exists(written.rpartition(":")[0]):
            # An existing file may have = in its name.
            return cls(written)
        share = label = None
        if found := _SHARE.fullmatch(written):
            written, share = found.groups()
        if found := _LABEL.fullmatch(written):
            label, written = found.groups()
        return cls(written, label, share)


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
    label: str | None = None
    """The label that the entry gives to it; the section is named after it."""
    share: str | None = None
    """The option ``share`` as the entry gives it."""
    reason: str | None = None
    """Line that says what ``auto`` has chosen and why; None: the component was named."""

    @property
    def recorded(self) -> str:
        """The entry that a run records: label, and a code reference as it was written or the qualified name."""
        is_code = code_reference.is_reference(self.written)
        name = self.written if is_code else self.registered.qualified
        return name if self.label is None else f"{self.label}={name}"

    @property
    def owner(self) -> str:
        """The component's name and origin, for messages about its options."""
        return f"{self.registered.name} ({self.registered.origin})"


def select(
    tree: Layer,
    labels: Labels,
    plugins: Plugins,
    options: OptionTree[OptionsT],
    accelerators: Sequence[Accelerator] | None = None,
) -> list[Choice]:
    """Return the components that the selectors name, in the selectors' order.

    Args:
        accelerators: the GPUs by which ``auto`` chooses; None: those of this machine.

    Raises:
        ConfigError: a required selector is not set, a selector names no installed component, or two selected
            components would share a section.
        PluginError: a component has the name of an option of the section in which its own options would stand.
    """
    waiting = [slot for slot in options.selectors if is_automatic(slot, tree, plugins)]
    found = {
        slot.path: select_slot(slot, tree, labels, plugins, options)
        for slot in options.selectors
        if slot not in waiting
    }
    for slot in waiting:
        others = [choice for chosen in found.values() for choice in chosen]
        chosen = select_automatically(slot, tree, others, plugins, options, accelerators)
        found[slot.path] = [chosen]
    choices = [choice for slot in options.selectors for choice in found[slot.path]]
    seen: dict[str, Choice] = {}
    for choice in choices:
        if other := seen.get(choice.section):
            raise ConfigError(
                f"{labels(choice.slot.path)} {choice.written}: its options would stand in the section "
                f"{choice.section!r}, where those of {labels(other.slot.path)} {other.written} stand.\n"
                f"  {_WAYS_OUT[choice.slot.labeled]}",
                code="config/section-taken",
            )
        seen[choice.section] = choice
        if choice.label in options.section_model(choice.slot).model_fields:
            raise ConfigError(
                f"{labels(choice.slot.path)} {choice.label}={choice.written}: expected another label; "
                f"{choice.section!r} is an option.",
                code="config/label-taken",
            )
        if choice.section.rpartition(".")[2] in options.section_model(choice.slot).model_fields:
            raise PluginError(
                f"{labels(choice.slot.path)} {choice.written}: the section {choice.section!r} cannot hold its options, "
                f"because the core has an option of that name. {choice.registered.origin} has to rename the component.",
                code="plugin/section-taken",
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
        raise ConfigError(
            f"{label}: {mismatch}; {_installed(registry)}", code="config/wrong-type"
        ) from None
    if isinstance(named, str):
        named = [named]
    if not named:
        if info.is_required():
            raise ConfigError(
                f"{label}: expected {with_article(registry.kind)}; {_installed(registry)}",
                code="config/wrong-type",
            )
        return []
    if not isinstance(named, list) or any(not isinstance(name, str) or not name for name in named):
        raise ConfigError(
            f"{label}: expected the name of {with_article(registry.kind)}, got {show(value)}; {_installed(registry)}",
            code="config/wrong-type",
        )
    return [_choose(slot, name, label, plugins) for name in named]


def is_automatic(slot: Selector, tree: Layer, plugins: Plugins) -> bool:
    """Return whether a selector leaves the choice of its one component to the setting."""
    value = lookup(tree.values, slot.path)
    written = value in (AUTO, Words((AUTO,)))
    return written and not slot.many and may_choose(plugins.registries[slot.hook])


def select_automatically(
    slot: Selector,
    tree: Layer,
    others: Sequence[Choice],
    plugins: Plugins,
    options: OptionTree[OptionsT],
    accelerators: Sequence[Accelerator] | None,
) -> Choice:
    """Return what ``auto`` comes to: in a run that is resumed what it had, else the component that suits best.

    Args:
        others: the choices of other selectors.
        accelerators: as for ``select``.

    Raises:
        ConfigError: no component suits.
    """
    registry = plugins.registries[slot.hook]
    folder = folder_to_resume([tree], options)
    if folder is not None and folder.config.is_file():
        had = lookup(read_toml(folder.config).values, slot.path)
        if isinstance(had, str) and had != AUTO:
            choice = _choose(slot, had, f"{folder.config}: {slot.path}", plugins)
            reason = f"{registry.kind} {choice.registered.name}: the run that is resumed had it"
            return replace(choice, reason=reason)
    setting = _setting(tree, others, options, accelerators)
    needs = [word for choice in others for word in choice.registered.component.needs]
    registered, why = best(registry, setting, needs)
    entry = SelectorEntry(registered.qualified)
    choice = _choice(slot, entry, registered, registered.name)
    return replace(choice, reason=f"{registry.kind} {registered.name}: {why}")


def _setting(
    tree: Layer,
    others: Sequence[Choice],
    options: OptionTree[OptionsT],
    accelerators: Sequence[Accelerator] | None,
) -> ChoiceSetting:
    components: dict[str, tuple[str, ...]] = {slot.path: () for slot in options.selectors}
    for choice in others:
        components[choice.slot.path] += (choice.registered.qualified,)
    written = {
        path: " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for path, value in leaves(tree.values)
    }
    visible = visible_accelerators() if accelerators is None else tuple(accelerators)
    return ChoiceSetting(
        accelerators=visible,
        components=components,
        provides=frozenset[str]().union(*(c.registered.component.provides for c in others)),
        needs=frozenset[str]().union(*(_default_needs(c.registered.component) for c in others)),
        options=written,
        model=model_config(written.get("model.path", "")) if visible else {},
    )


def _default_needs(component: Component[Any]) -> frozenset[str]:
    """Return what a component needs with the defaults of its options, as far as it has any without a value to write."""
    fields = component.config.model_fields.values()
    if any(info.is_required() for info in fields):
        return component.needs
    return component.needs | component.config().needed_by_options()


def written_names(slot: Selector, layers: Sequence[Layer]) -> Iterator[str]:
    """Yield every name that some layer, also an overridden one, gives to a selector; what is no name is left out."""
    for layer in layers:
        value = lookup(layer.values, slot.path)
        names = value if isinstance(value, list | tuple) else [value]
        yield from (name for name in names if isinstance(name, str))


_WAYS_OUT = {
    False: "Choose one of them, or rename one in its file; a section has the name in snake_case.",
    True: "Choose it once, or give it a label of its own: LABEL=NAME.",
}
"""Ways out of two components with one section, by whether the selector is labeled."""


def _choose(slot: Selector, written: str, label: str, plugins: Plugins) -> Choice:
    entry = SelectorEntry.of(slot, written)
    name = entry.name
    try:
        wrapper = _wrapper(plugins.registries[slot.hook])
        if code_reference.is_reference(name) and wrapper is not None:
            reference = code_reference.parse(name)
            reference.definition()
            plugins.loaded[str(reference.path)] = reference.origin
            return _choice(slot, entry, wrapper, reference.name, wraps=name)
        registered = plugins.get(slot.hook, name)
    except RLHFError as error:
        raise error.with_text(f"{label} {written}: {error}") from error
    return _choice(slot, entry, registered, registered.name)


def _choice(
    slot: Selector,
    entry: SelectorEntry,
    registered: Registered[Any],
    section: str,
    wraps: str | None = None,
) -> Choice:
    aliases = () if wraps or entry.label else registered.component.aliases
    section = entry.label or section
    return Choice(
        slot=slot,
        written=entry.name,
        registered=registered,
        section=f"{slot.section}.{section}",
        names=frozenset({section, *aliases}),
        wraps=wraps,
        label=entry.label,
        share=entry.share,
    )


def _wrapper(registry: AnyRegistry) -> Registered[Any] | None:
    found = [entry for entry in registry if WRAPS_CODE in entry.component.provides]
    if len(found) > 1:
        names = ", ".join(entry.qualified for entry in found)
        raise ConfigError(
            f"several components wrap code ({names}); uninstall all but one of these plugins",
            code="config/ambiguous-name",
        )
    return found[0] if found else None


def _installed(registry: AnyRegistry) -> str:
    names = registry.names()
    return (
        f"installed: {', '.join(names)}"
        if names
        else f"no plugin with {with_article(registry.kind)} is installed"
    )
