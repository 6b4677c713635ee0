"""Every option that a message of the source names is an option of some command: nobody is sent to what is not there."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from rlhf_cli.runs import training_commands
from rlhf_config import OptionTree
from rlhf_config.sections import fields_of
from rlhf_core.plugins import load

ROOT = Path(__file__).parents[2]
FLAG = re.compile(r"(?<![\w-])--([a-z]\w*(?:\.[a-z]\w*)+)")
KEY = re.compile(r"(?<![\w.\[])([a-z]\w*(?:\.[a-z]\w*)+) = ")
NO_MESSAGES = {"rlhf_plugin_migrate"}
"""Packages whose texts name options of other frameworks."""
EXAMPLES = {"a.b", "section.option"}
"""How flags are written, in the words of the reader of flags."""


def sources():
    """Source files of the core, the command line and the plugins that the repository installs."""
    for folder in ("core/src", "cli/src", "libs", "plugins"):
        for file in sorted(
            (ROOT / folder).rglob("src/**/*.py" if folder in ("libs", "plugins") else "*.py")
        ):
            if not NO_MESSAGES & set(file.parts):
                yield file


def trees(plugins):
    """The options of each command that has a tree of them."""
    found = {name: command.options for name, command in training_commands(plugins).items()}
    for file in sources():
        if "= OptionTree(" not in file.read_text(encoding="utf-8"):
            continue
        parts = file.with_suffix("").parts
        last = len(parts) - 1 - parts[::-1].index("src")
        module = importlib.import_module(".".join(parts[last + 1 :]))
        found |= {one.command: one for one in vars(module).values() if isinstance(one, OptionTree)}
    return found


@pytest.fixture(scope="module")
def options():
    """Dotted paths of the options of all commands and components, and of the sections that they are in."""
    plugins = load("")
    commands = trees(plugins)
    assert {"train", "sft", "dpo", "rm", "prm", "distill", "generate", "eval", "chat"} <= set(
        commands
    )
    paths = {path for tree in commands.values() for path, _ in fields_of(tree.model)}
    for tree in commands.values():
        for slot in tree.selectors:
            beside = [tree.shared[slot.path]] if slot.path in tree.shared else []
            for entry in plugins.registries[slot.hook]:
                paths |= {
                    f"{slot.section}.{name}.{path}"
                    for name in (entry.name, *entry.component.aliases)
                    for model in (entry.component.config, *beside)
                    for path, _ in fields_of(model)
                }
    sections = {path[:at] for path in paths for at, letter in enumerate(path) if letter == "."}
    return paths, sections


def exists(named, options):
    """Whether a path is an option, a section, or an entry of an option that is a table."""
    paths, sections = options
    return named in paths | sections or named.rpartition(".")[0] in paths


def named_in(text, options):
    """Yield the options that a text names, as flags or as keys of a file."""
    _, sections = options
    yield from FLAG.findall(text)
    first_words = {section.partition(".")[0] for section in sections}
    yield from (key for key in KEY.findall(text) if key.partition(".")[0] in first_words)


def test_every_option_that_the_source_names_exists(options):
    dead = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {named}"
        for file in sources()
        # Most files name none, and need no parser.
        if not all(exists(named, options) for named in named_in(file.read_text("utf-8"), options))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for named in named_in(node.value, options)
        if named not in EXAMPLES and not exists(named, options)
    ]

    assert not dead


def test_a_dead_option_would_be_found(options):
    text = "Set --data.promt_key, or eval.evry = 0 in the file; --runtime.ray.ranks.policy 2, --rollout.batch_size 4."

    assert [named for named in named_in(text, options) if not exists(named, options)] == [
        "data.promt_key",
        "eval.evry",
    ]
