"""The second pass over the options: each is validated against the core's model or that of a selected component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from rlhf_core import code_reference
from rlhf_core.component import Config
from rlhf_core.contracts.engine import Accelerator
from rlhf_core.errors import PluginError
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import Plugins

from .checks.effects import components_without_effect, refuse_typed
from .layers import Layer, Words, insert, leaves, lookup, merge
from .option_tree import OptionTree
from .presets import with_preset
from .problems import Labels, Report, flag
from .resolved import (
    EnvironmentOptions,
    OptionsT,
    PreferenceTermOptions,
    Resolved,
    ResolvedOptions,
    RewardOptions,
    Selection,
    Selections,
)
from .sections import Validator, options_of
from .selection import Choice, SelectorEntry, select, written_names
from .train import TRAIN


def resolve(
    layers: Sequence[Layer], plugins: Plugins, accelerators: Sequence[Accelerator] | None = None
) -> Resolved:
    """Return the validated configuration of ``rlhf train``; see ``resolve_options``."""
    return resolve_options(layers, plugins, TRAIN, accelerators)


def resolve_options(
    layers: Sequence[Layer],
    plugins: Plugins,
    options: OptionTree[OptionsT],
    accelerators: Sequence[Accelerator] | None = None,
) -> ResolvedOptions[OptionsT]:
    """Return the validated configuration of all layers, later ones winning.

    Reads no file but the code that a selector names and, for a selector that says ``auto``, the model's ``config.json``
    and the configuration of a run that is resumed; and imports nothing heavy. Whether data and models exist is for
    ``check_paths`` to say.

    Args:
        accelerators: the GPUs by which ``auto`` chooses; None: those of this machine.

    Raises:
        ConfigError: an option is wrong; the message gives the first in full and names the others.
        PluginError: a plugin's description contradicts itself or the core.
    """
    layers = with_preset(layers, plugins, options)
    tree = merge(layers)
    labels = Labels(tree)
    choices = select(tree, labels, plugins, options, accelerators)
    report = Report()
    core, sections, unused = _split(tree, layers, options, choices, plugins, labels, report)
    validator = Validator(labels, known_options(options, choices), report, options.command)
    run = validator.validate(options.model, core)
    selections: dict[str, list[Selection]] = {slot.path: [] for slot in options.selectors}
    for choice in choices:
        shared = options.shared.get(choice.slot.path)
        values = sections[choice.section]
        if selection := _selection(choice, shared, values, validator, labels, report):
            selections[choice.slot.path].append(selection)
    report.raise_if_any()
    assert run is not None
    run = run.settled()
    frozen = {path: tuple(chosen) for path, chosen in selections.items()}
    options.check(run, frozen, labels, plugins)
    refuse_typed(components_without_effect(frozen), labels)
    return ResolvedOptions(
        run=run,
        selections=frozen,
        tree=_tree(run, choices, frozen),
        unused=unused,
        command=options.command,
        cautions=options.cautions(run, frozen, labels),
        choices=tuple(choice.reason for choice in choices if choice.reason is not None),
        inputs=(*options.models(run), *options.data(run), *_continued(frozen)),
    )


def _continued(selections: Selections) -> Iterator[tuple[str, str]]:
    """Yield the section of each component that continues from a folder, and the folder."""
    for chosen in selections.values():
        for selection in chosen:
            if (folder := selection.options.continued_from()) is not None:
                yield selection.section, folder


def known_options(options: OptionTree[OptionsT], choices: Sequence[Choice]) -> list[str]:
    """Return the paths of all options that a run with these components has."""
    known = list(options_of(options.model))
    for choice in choices:
        known += options_of(choice.registered.component.config, choice.section)
        if (shared := options.shared.get(choice.slot.path)) is not None:
            known += options_of(shared, choice.section)
    return known


def _split(
    tree: Layer,
    layers: Sequence[Layer],
    options: OptionTree[OptionsT],
    choices: Sequence[Choice],
    plugins: Plugins,
    labels: Labels,
    report: Report,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], tuple[str, ...]]:
    """Split the tree: the core's options, each component's by section, and paths of sections that nothing uses."""
    core: dict[str, Any] = {}
    for path, value in leaves(tree.values):
        insert(core, path, value)
    for choice in choices:
        insert(core, choice.slot.path, _recorded(choice, choices))
    sections: dict[str, dict[str, Any]] = {choice.section: {} for choice in choices}
    unused: list[str] = []
    for parent, slot in {slot.section: slot for slot in options.selectors}.items():
        table = lookup(core, parent)
        if not isinstance(table, dict):
            continue
        own = [choice for choice in choices if choice.slot.section == parent]
        taken = options.section_model(slot).model_fields
        for key in [key for key in table if key not in taken]:
            path = f"{parent}.{key}"
            chosen = next((choice for choice in own if key in choice.names), None)
            if chosen is not None:
                _take(table.pop(key), path, sections[chosen.section], labels, report)
            elif found := _unselected(parent, key, layers, options, plugins):
                value = table.pop(key)
                _note_unselected(path, value, found, own, labels, report)
                if not all(labels.is_default(leaf) for leaf in _leaves(value, path)):
                    unused.append(path)
    return core, sections, tuple(sorted(unused))


def _recorded(choice: Choice, choices: Sequence[Choice]) -> str | list[str]:
    if not choice.slot.many:
        return choice.recorded
    return [other.recorded for other in choices if other.slot == choice.slot]


def _take(value: Any, path: str, section: dict[str, Any], labels: Labels, report: Report) -> None:
    if not isinstance(value, Mapping):
        text = f"{path!r} is a section, not an option; write {path}.OPTION"
        report.add(labels(path), text, code="config/option-and-section")
        return
    for key, entry in value.items():
        if key in section:
            report.add(
                labels(f"{path}.{key}"),
                "is given twice, under the component's name and an alias; leave one out",
                code="config/alias-twice",
            )
        section[key] = entry


def _unselected(
    parent: str,
    key: str,
    layers: Sequence[Layer],
    options: OptionTree[OptionsT],
    plugins: Plugins,
) -> tuple[str, str] | None:
    """Return selector and origin of the component that ``key`` names, if it exists but this run does not use it."""
    for slot in options.selectors:
        if slot.section != parent:
            continue
        for entry in plugins.registries[slot.hook]:
            if key in (entry.name, *entry.component.aliases):
                return slot.path, entry.origin
        for written in written_names(slot, layers):
            named = SelectorEntry.of(slot, written)
            if named.label == key:
                return slot.path, written
            name = named.name
            if code_reference.is_reference(name) and code_reference.parse(name).name == key:
                return slot.path, name
    return None


def _note_unselected(
    path: str,
    value: Any,
    found: tuple[str, str],
    own: Sequence[Choice],
    labels: Labels,
    report: Report,
) -> None:
    """Report typed options of a component that is not selected. In a file they may wait for a run that selects it."""
    slot, origin = found
    key = path.rpartition(".")[2]
    used = " ".join(choice.registered.name for choice in own if choice.slot.path == slot)
    for leaf in _leaves(value, path):
        if labels.is_typed(leaf):
            report.add(
                labels(leaf),
                f"{key} ({origin}) is not selected; this run uses {flag(slot)} {used or 'none'}.\n"
                f"  Add {flag(slot)} {key}, or leave the option out.",
                code="config/no-effect",
            )


def _leaves(value: Any, path: str) -> list[str]:
    """Return the paths of the options below one."""
    return [leaf for leaf, _ in leaves(value, path)] if isinstance(value, Mapping) else [path]


def _selection(
    choice: Choice,
    shared: type[Config] | None,
    values: dict[str, Any],
    validator: Validator,
    labels: Labels,
    report: Report,
) -> Selection | None:
    """Validate one component's section: the component's own options, and those that its kind shares."""
    model = choice.registered.component.config
    of_core: Config | None = None
    if choice.share is not None:
        values = _with_share(choice, values, labels, report)
    if shared is not None:
        every = f"every {COMPONENT_HOOKS[choice.slot.hook]}"
        if clash := sorted(shared.model_fields.keys() & model.model_fields.keys()):
            raise PluginError(
                f"{labels(choice.slot.path)} {choice.written}: {choice.registered.origin} gives it the option "
                f"{clash[0]!r}, which the core has for {every}; the plugin has to rename it",
                code="plugin/option-name-taken",
            )
        own = {key: value for key, value in values.items() if key in shared.model_fields}
        values = {key: value for key, value in values.items() if key not in own}
        of_core = validator.validate(shared, own, choice.section, every)
        if of_core is None:
            return None
    if choice.wraps is not None:
        _check_wrapped_path(choice, values, labels, report)
        values = {**values, "path": choice.wraps}
    options = validator.validate(model, values, choice.section, choice.owner)
    if options is None:
        return None
    return Selection(
        slot=choice.slot.path,
        section=choice.section,
        registered=choice.registered,
        options=options,
        reward=of_core if isinstance(of_core, RewardOptions) else None,
        term=of_core if isinstance(of_core, PreferenceTermOptions) else None,
        environment=of_core if isinstance(of_core, EnvironmentOptions) else None,
    )


def _with_share(
    choice: Choice, values: Mapping[str, Any], labels: Labels, report: Report
) -> dict[str, Any]:
    """Return a section with the share that its entry gives. Of the two places, one that was typed for this run wins."""
    path, selector = f"{choice.section}.share", choice.slot.path
    written = values.get("share")
    typed = labels.is_typed(path)
    if typed and labels.is_typed(selector) and written != Words((str(choice.share),)):
        text = f"{flag(selector)} {choice.written}={choice.share} gives another share"
        report.add(labels(path), text, code="config/two-shares")
    return dict(values) if typed else {**values, "share": Words((str(choice.share),))}


def _check_wrapped_path(
    choice: Choice, values: Mapping[str, Any], labels: Labels, report: Report
) -> None:
    written = values.get("path", choice.wraps)
    if written not in (choice.wraps, Words((str(choice.wraps),))):
        report.add(
            labels(f"{choice.section}.path"),
            f"{flag(choice.slot.path)} {choice.written} already says where the function is; leave this option out",
            code="config/function-twice",
        )


def _tree(run: BaseModel, choices: Sequence[Choice], selections: Selections) -> dict[str, Any]:
    tree: dict[str, Any] = run.model_dump(mode="json")
    chosen = [selection for slot in selections.values() for selection in slot]
    by_section = {choice.section: choice for choice in choices}
    for selection in chosen:
        options: dict[str, Any] = {
            **_dump(selection.reward),
            **_dump(selection.term),
            **_dump(selection.environment),
            **_dump(selection.options),
        }
        if by_section[selection.section].wraps is not None:
            del options["path"]
        insert(tree, selection.section, options)
    return tree


def _dump(config: Config | None) -> dict[str, Any]:
    return {} if config is None else config.model_dump(mode="json")
