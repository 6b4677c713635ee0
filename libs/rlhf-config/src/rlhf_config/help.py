"""Help of a command with an option tree: its options and those of selected components, derived from their models."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlhf_core.errors import RLHFError
from rlhf_core.plugins import Plugins

from .annotations import NONE, model_of, type_name
from .layers import Layer, Words, leaves, lookup, merge
from .option_tree import OptionTree, Selector
from .presets import HOOK as PRESET_HOOK
from .presets import PRESET, with_preset
from .problems import Labels, flag
from .resolved import OptionsT
from .sections import fields_of
from .selection import Choice, is_automatic, select_automatically, select_slot
from .train import TRAIN

_USAGE = """\
Usage: rlhf {command} [-c FILE.toml]... [--OPTION VALUE]...

{purpose}
Options come from the files in order, then from the command line. Both use the same names.
A list takes several words. 'none' unsets an optional value. A flag without a value means true.
This text has the options of the selected components. To see those of another:
  rlhf {command} {example} --help

  -c FILE            a TOML file with options; may be given several times, later ones win
  --gpus N|all       train on several GPUs of this machine: one rank of each role{engines} on each
  --check            check whether the configuration is valid, and stop
  --dry-run          show what the run would build, and stop
  --resume [PATH]    continue from the newest checkpoint of the run folder, or from the one at PATH
  -h, --help         this text"""


def render_help(
    layers: Sequence[Layer],
    plugins: Plugins,
    width: int = 100,
    options: OptionTree[Any] = TRAIN,
) -> str:
    """Return the help text of a command's options and of the components that the layers select.

    A selector that names no usable component gives a note in the text, not an error.
    """
    layers, trouble = _preset_leniently(layers, plugins, options)
    tree = merge(layers)
    labels = Labels(tree)
    choices, more_trouble = _select_leniently(tree, labels, plugins, options)
    trouble += more_trouble
    words = {"command": options.command, "purpose": options.purpose, "example": options.example}
    generates = any(slot.path == "engine.name" for slot in options.selectors)
    words["engines"] = " and one engine" if generates else ""
    lines = _usage(options.usage or _USAGE.format(**words), width)
    if trouble:
        wide = [textwrap.wrap(f"note: {text}", width, subsequent_indent="  ") for text in trouble]
        lines += ["", *(line for note in wide for line in note)]
    for section, fields in _sections(options.model):
        lines += ["", section or "run"]
        for name, info in fields:
            path = f"{section}.{name}" if section else name
            lines += _option(path, info, tree, width)
            lines += _alternatives(options.selectors, path, choices, plugins, width)
            lines += _presets(path, plugins, width)
        for choice in choices:
            if choice.slot.section == section:
                lines += _component(choice, options.shared.get(choice.slot.path), tree, width)
    return "\n".join(lines)


def _usage(text: str, width: int) -> list[str]:
    """Return the lines of the text above the options, each wrapped to the width below where its own text begins."""
    lines = []
    for line in text.splitlines():
        column = re.match(r"(?:Usage:|  -.*?  )? *", line)
        indent = " " * (column.end() if column else 0)
        wrapped = textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
        lines += wrapped or [""]
    return lines


def _preset_leniently(
    layers: Sequence[Layer], plugins: Plugins, options: OptionTree[Any]
) -> tuple[Sequence[Layer], list[str]]:
    """Return the layers with that of the preset, and what is wrong with one that cannot be used."""
    try:
        return with_preset(layers, plugins, options), []
    except RLHFError as error:
        return layers, [str(error)]


def _select_leniently(
    tree: Layer, labels: Labels, plugins: Plugins, options: OptionTree[OptionsT]
) -> tuple[list[Choice], list[str]]:
    """Select slot by slot, so that one name that does not exist hides nothing else."""
    choices: list[Choice] = []
    trouble: list[str] = []
    for slot in options.selectors:
        try:
            if is_automatic(slot, tree, plugins):
                # Help is the same on each machine, and asks none for its GPUs.
                choices.append(select_automatically(slot, tree, choices, plugins, options, ()))
            else:
                choices += select_slot(slot, tree, labels, plugins, options)
        except RLHFError as error:
            trouble.append(str(error))
    return choices, trouble


def _sections(
    model: type[BaseModel], prefix: str = ""
) -> Iterator[tuple[str, list[tuple[str, FieldInfo]]]]:
    """Yield each section with the options that stand directly in it."""
    own = [
        (name, info) for name, info in model.model_fields.items() if not model_of(info.annotation)
    ]
    if own:
        yield prefix, own
    for name, info in model.model_fields.items():
        if nested := model_of(info.annotation):
            yield from _sections(nested, f"{prefix}.{name}" if prefix else name)


def _option(
    path: str,
    info: FieldInfo,
    tree: Layer,
    width: int,
    indent: str = "  ",
    other_paths: Sequence[str] = (),
) -> list[str]:
    names = flag(path) if flag(path) == f"--{path}" else f"{flag(path)}, --{path}"
    head = f"{indent}{names} {type_name(info.annotation)}"
    text = f"{info.description or ''} {_value([path, *other_paths], info, tree)}".strip()
    column = len(indent) + 34
    wrapped = textwrap.wrap(text, width - column)
    if len(head) < column - 1 and wrapped:
        return [head.ljust(column) + wrapped[0], *(" " * column + line for line in wrapped[1:])]
    return [*_broken(head, width), *(" " * column + line for line in wrapped)]


def _broken(head: str, width: int) -> list[str]:
    """Return the lines of an option's head, whose choices go on below where they are too many for a line."""
    lines = [""]
    for piece in re.findall(r"[^|]+\|?", head):
        if len(lines[-1]) + len(piece) > width:
            lines.append(" " * 8)
        lines[-1] += piece
    return lines


def _value(paths: Sequence[str], info: FieldInfo, tree: Layer) -> str:
    """Return the option's present value and where it was written, in parentheses.

    Args:
        paths: each path under which the option may be written.
    """
    for path in paths:
        written = lookup(tree.values, path)
        if written is None:
            continue
        if isinstance(written, Mapping):
            value = " ".join(f"{key}={_written(entry)}" for key, entry in leaves(written))
            labels = [tree.origins[f"{path}.{key}"].label for key, _ in leaves(written)]
        else:
            value, labels = _written(written) or "true", [tree.origins[path].label]
        if labels[0].endswith("(default)"):
            return f"(default {value})"
        return f"(now {value}, by {', '.join(labels)})"
    if info.is_required():
        return "(required)"
    default = info.get_default(call_default_factory=True)
    return "" if default in ((), "") else f"(default {_plain(default)})"


def _written(value: Any) -> str:
    return " ".join(value) if isinstance(value, Words) else _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(_plain(entry) for entry in value)
    return str(value)


def _alternatives(
    slots: Sequence[Selector],
    path: str,
    choices: Sequence[Choice],
    plugins: Plugins,
    width: int,
) -> list[str]:
    """Return lines with the other components that a selector could pick."""
    slot = next((slot for slot in slots if slot.path == path), None)
    if slot is None:
        return []
    chosen = {choice.registered.qualified for choice in choices if choice.slot == slot}
    others = [
        entry.name for entry in plugins.registries[slot.hook] if entry.qualified not in chosen
    ]
    if not others:
        return []
    return _aside(f"{'also ' * bool(chosen)}installed: {', '.join(others)}", width)


def _presets(path: str, plugins: Plugins, width: int) -> list[str]:
    """Return lines with the installed presets, below the option that names one."""
    names = plugins.registries[PRESET_HOOK].names() if path == PRESET else ()
    return _aside(f"installed: {', '.join(names)}", width) if names else []


def _aside(text: str, width: int) -> list[str]:
    return [" " * 36 + line for line in textwrap.wrap(text, width - 36)]


def _component(
    choice: Choice, shared: type[BaseModel] | None, tree: Layer, width: int
) -> list[str]:
    registered = choice.registered
    summary = f": {registered.component.summary}" if registered.component.summary else ""
    lines = textwrap.wrap(
        f"{choice.section} ({registered.origin}){summary}",
        width,
        initial_indent="  ",
        subsequent_indent="    ",
    )
    models: list[type[BaseModel]] = [registered.component.config]
    if shared is not None:
        models.append(shared)
    for model in models:
        for name, info in fields_of(model):
            if choice.wraps is None or name != "path":
                others = [f"{choice.slot.section}.{word}.{name}" for word in sorted(choice.names)]
                path = f"{choice.section}.{name}"
                lines += _option(path, info, tree, width, indent="    ", other_paths=others)
    return lines
