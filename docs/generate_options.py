"""Writes docs/options.md and a page for each section below docs/options/, from the options models of this repository.

Run with ``make generated`` after an option has changed; a test compares the files with what this would write. A new
section needs a sentence in `PURPOSES`.
"""

from __future__ import annotations

import re
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
DOCS = ROOT / "docs"
INDEX = "options.md"
FOLDER = "options"

HEAD = """\
# Options

This page lists the sections of options; each section has a page of its own. `make generated` writes these pages from
the options models. [Configuration](configuration.md) explains how you set options. The defaults of selectors, which
choose components, are those of the command line. `...` after a type means a list.

The options of a component are on the page of its section, below the selector that chooses it, in a section named after
the component. Optimizers and model adapters are also in `critic.<name>`, and policy losses that are further terms are
in `algo.terms.<name>`.
"""
PURPOSES = {
    "run": "Options outside of all sections: the preset, the seed and the run folder.",
    "model": "The model that is trained: where it is, its tokenizer and precision, and what reads images for it.",
    "data": "The prompts: where they are, which columns count and in which order they come.",
    "rollout": "Episodes: how they are sampled, how many and how long, what plays them, and which prompts are kept.",
    "env": "The environments in which the policy acts.",
    "reward": "Rewards, which score an episode, and shapers, which change a score before anything else sees it.",
    "algo.advantage": "The estimator of advantages.",
    "algo.loss": "The policy loss, its aggregation and what is added to it.",
    "algo.kl": "The penalty on the divergence from the reference model.",
    "algo.terms": "Further losses beside the policy loss.",
    "algo.correction": "The correction between the sampler's policy and the trainer's.",
    "algo.teacher": "The model that distillation learns from.",
    "actor": "Training of the policy: optimizer, schedule of the learning rate, adapter.",
    "critic": "The value model of an estimator that needs one.",
    "ref": "The reference model.",
    "supervised": "Given responses that a run trains on beside its rollouts.",
    "train": "Steps, batches and updates.",
    "eval": "Evaluation on held-out prompts.",
    "checkpoint": "Checkpoints and exports: what a run saves, and when.",
    "observers": "Observers, which watch a run and may end it.",
    "log": "The records of a run, and where they go.",
    "resume": "How a run continues from a checkpoint.",
    "engine": "The engine, which generates.",
    "backend": "The training backend, which computes updates.",
    "runtime": "The runtime, which places the processes of a run.",
}
"""Sections that have a page -> what they are about."""
TABLE = ["| option | type | default | |", "| --- | --- | --- | --- |"]
CODE_OR_LESS = re.compile(r"`[^`]*`|<")


def pages(plugins: Plugins, selected: dict[str, Any]) -> dict[str, str]:
    """Pages by their path below docs/: the index, those of sections, and those of commands that train on examples.

    Args:
        selected: the command line's defaults, as a nested tree.
    """
    bodies = {name: [f"# {name}", "", purpose] for name, purpose in PURPOSES.items()}
    for section, fields in sections(RunConfig):
        paths = [(f"{section}.{name}" if section else name, info) for name, info in fields]
        rows = [row(path, info, lookup(selected, path)) for path, info in paths]
        bodies[section or "run"] += ["", *TABLE, *rows]
    for title, name, place, model in (
        ("Every reward", "reward", "in its section", RewardOptions),
        ("Every further loss", "algo.terms", "in `algo.terms.<name>`", TermOptions),
    ):
        bodies[name] += [
            "",
            f"## {title}",
            "",
            f"{title} has these options beside its own, {place}.",
            "",
            *TABLE,
        ]
        bodies[name] += [row(option, info) for option, info in fields_of(model)]
    for slot in SLOTS:
        if slot.path in ("critic.optim", "critic.adapter", "algo.terms.use"):
            continue  # The same components as actor.optim, actor.adapter and algo.loss.policy.
        entries = [entry for entry in plugins.registries[slot.hook] if _is_ours(entry)]
        for entry in entries:
            described = component(slot.section, COMPONENT_HOOKS[slot.hook], entry)
            bodies[page_of(slot.section)] += ["", *described]
    for command in COMMANDS.values():
        tree = command.options
        bodies[f"rlhf-{tree.command}"] = examples_command(plugins, command)
    written = {f"{FOLDER}/{name}.md": "\n".join(lines) + "\n" for name, lines in bodies.items()}
    return {INDEX: index(), **written}


def index() -> str:
    """The page that lists sections and commands."""
    lines = [HEAD, "## Sections of rlhf train", "", "| section | |", "| --- | --- |"]
    lines += [f"| [{name}]({FOLDER}/{name}.md) | {text} |" for name, text in PURPOSES.items()]
    lines += ["", "## Commands that train on examples", "", "| command | |", "| --- | --- |"]
    for tree in (command.options for command in COMMANDS.values()):
        name = tree.command
        lines.append(f"| [rlhf {name}]({FOLDER}/rlhf-{name}.md) | {tree.purpose} |")
    return "\n".join(lines) + "\n"


def page_of(section: str) -> str:
    """Name of a section's page: that of the longest section with a page that it is, or lies in."""
    while section not in PURPOSES:
        section = section.rpartition(".")[0]
    return section


def examples_command(plugins: Plugins, command: TrainingCommand[Any]) -> list[str]:
    """Heading and options of a command that trains on examples, without those that it shares with ``rlhf train``."""
    tree = command.options
    selected = tomllib.loads(command.defaults.read_text(encoding="utf-8"))
    shared = {(path, *_described(info)) for path, info in fields_of(RunConfig)}
    lines = [f"# rlhf {tree.command}", "", tree.purpose]
    lines.append(
        "Options that `rlhf train` has too, with the same meaning and default, are not repeated."
    )
    for section, fields in sections(tree.model):
        named = [(f"{section}.{name}" if section else name, info) for name, info in fields]
        own = [(path, info) for path, info in named if (path, *_described(info)) not in shared]
        if own:
            lines += ["", f"## rlhf {tree.command}: {section or 'run'}", "", *TABLE]
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
    lines = [f"## {section}.{entry.name}", ""]
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
        _escaped(info.description or ""),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |"


def _escaped(text: str) -> str:
    """Return a text whose ``<words>`` are shown; in code they are as they stand."""
    return CODE_OR_LESS.sub(lambda found: "&lt;" if found[0] == "<" else found[0], text)


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


def current() -> dict[str, str]:
    """The pages for what is installed."""
    return pages(plugin_loader.load(""), tomllib.loads(DEFAULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    written = current()
    for path in (DOCS / FOLDER).glob("*.md"):
        if path.relative_to(DOCS).as_posix() not in written:
            path.unlink()
    (DOCS / FOLDER).mkdir(exist_ok=True)
    for name, text in written.items():
        (DOCS / name).write_text(text, encoding="utf-8")
