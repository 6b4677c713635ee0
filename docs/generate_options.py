"""Writes docs/options.md from the options models of the core and of the plugins of this repository.

Run with ``make generated`` after an option has changed; a test compares the file with what this would write.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlhf_cli.train import DEFAULTS
from rlhf_cli.training import TrainingCommand
from rlhf_config.annotations import model_of, type_name
from rlhf_config.flags import SHORT_NAMES
from rlhf_config.layers import lookup
from rlhf_config.resolved import RewardOptions, TermOptions
from rlhf_config.run import RunConfig
from rlhf_config.sections import fields_of
from rlhf_config.train import SLOTS
from rlhf_core import plugins as plugin_loader
from rlhf_core.component import Registered
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import Plugins
from rlhf_plugin_supervised.training.command import COMMANDS

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs/options.md"

HEAD = """\
# Options

Written by `make generated` from the options models. How options are set: [configuration.md](configuration.md). Defaults
of selectors are those of the command line. `...` after a type means a list.
"""
TABLE = ["| option | type | default | |", "| --- | --- | --- | --- |"]


def page(plugins: Plugins, selected: dict[str, Any]) -> str:
    """Return the page: the core's sections, then the components' by the selector that picks them.

    Args:
        selected: the command line's defaults, as a nested tree.
    """
    lines = [HEAD, "## Core"]
    for section, fields in sections(RunConfig):
        lines += ["", f"### {section or 'run'}", "", *TABLE]
        for name, info in fields:
            path = f"{section}.{name}" if section else name
            lines.append(row(path, info, lookup(selected, path)))
    lines += ["", "## Components", ""]
    lines.append("In a section named after the component, beside the selector that picks it.")
    lines.append("Optimizers and model adapters stand in `critic.<name>` likewise.")
    lines.append("Policy losses stand in `algo.terms.<name>` when they are further terms.")
    for slot in SLOTS:
        if slot.path in ("critic.optim", "critic.adapter", "algo.terms.use"):
            continue  # The same components as actor.optim, actor.adapter and algo.loss.policy.
        entries = [entry for entry in plugins.registries[slot.hook] if _is_ours(entry)]
        for entry in entries:
            lines += ["", *component(slot.section, COMPONENT_HOOKS[slot.hook], entry)]
    lines += ["", "## Every reward", ""]
    lines.append("Beside a reward's own options, in the same section.")
    lines += ["", *TABLE, *(row(name, info) for name, info in fields_of(RewardOptions))]
    lines += ["", "## Every further loss", ""]
    lines.append("Beside its own options, in `algo.terms.<name>`.")
    lines += ["", *TABLE, *(row(name, info) for name, info in fields_of(TermOptions))]
    for command in COMMANDS.values():
        lines += ["", *examples_command(plugins, command)]
    return "\n".join(lines) + "\n"


def examples_command(plugins: Plugins, command: TrainingCommand[Any]) -> list[str]:
    """Heading and options of a command that trains on examples, without those that it shares with ``rlhf train``."""
    tree = command.options
    selected = tomllib.loads(command.defaults.read_text(encoding="utf-8"))
    shared = {(path, *_described(info)) for path, info in fields_of(RunConfig)}
    lines = [f"## rlhf {tree.command}", "", tree.purpose]
    lines.append(
        "Options that `rlhf train` has too, with the same meaning and default, are not repeated."
    )
    for section, fields in sections(tree.model):
        named = [(f"{section}.{name}" if section else name, info) for name, info in fields]
        own = [(path, info) for path, info in named if (path, *_described(info)) not in shared]
        if own:
            lines += ["", f"### rlhf {tree.command}: {section or 'run'}", "", *TABLE]
            lines += [row(path, info, lookup(selected, path)) for path, info in own]
    known = {slot.hook for slot in SLOTS}
    for slot in tree.selectors:
        for entry in plugins.registries[slot.hook] if slot.hook not in known else ():
            if _is_ours(entry):
                lines += ["", *component(slot.section, COMPONENT_HOOKS[slot.hook], entry)]
    return lines


def _described(info: FieldInfo) -> tuple[str, str, str | None]:
    """Type, default and description of an option."""
    return type_name(info.annotation), _plain(info, None), info.description


def sections(
    model: type[BaseModel], prefix: str = ""
) -> Iterator[tuple[str, list[tuple[str, FieldInfo]]]]:
    """Yield each section with the options that stand directly in it."""
    fields = model.model_fields.items()
    if own := [(name, info) for name, info in fields if not model_of(info.annotation)]:
        yield prefix, own
    for name, info in fields:
        if nested := model_of(info.annotation):
            yield from sections(nested, f"{prefix}.{name}" if prefix else name)


def component(section: str, kind: str, entry: Registered[Any]) -> list[str]:
    """Heading, summary and options of one component."""
    aliases = "".join(f", `{alias}`" for alias in entry.component.aliases)
    lines = [f"### {section}.{entry.name}", ""]
    lines.append(f"{kind} `{entry.name}`{aliases} of {entry.plugin}: {entry.component.summary}.")
    if needs := sorted(entry.component.needs):
        lines.append(f"Needs {', '.join(f'`{need}`' for need in needs)}.")
    if fields := list(fields_of(entry.component.config)):
        lines += ["", *TABLE, *(row(name, info) for name, info in fields)]
    return lines


def row(path: str, info: FieldInfo, selected: Any = None) -> str:
    """One line of a table."""
    short = [f"`--{name}`, " for name, long in SHORT_NAMES.items() if long == path]
    default = _plain(info, selected)
    cells = [
        f"{''.join(short)}`{path}`",
        f"`{type_name(info.annotation)}`",
        f"`{default}`" if default else "",
        info.description or "",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |"


def _plain(info: FieldInfo, selected: Any) -> str:
    if selected is not None:
        return str(selected)
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_ours(entry: Registered[Any]) -> bool:
    if entry.distribution is None:
        return False
    return (ROOT / "plugins" / entry.distribution.metadata["Name"]).is_dir()


def current() -> str:
    """The page for what is installed."""
    return page(plugin_loader.load(""), tomllib.loads(DEFAULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    TARGET.write_text(current(), encoding="utf-8")
