"""Every option of ``rlhf generate`` and ``rlhf eval``, and of every component of theirs, when a folder is gone on with:
it is refused by its name, or it is one of those that no result depends on."""

from dataclasses import replace

import pytest
from tests.integration.first_party import installed
from tests.integration.options_at_resume import with_other

from rlhf_config import Layer
from rlhf_config.resolve import resolve_options
from rlhf_config.sections import fields_of
from rlhf_core import ConfigError
from rlhf_core.plugins import load
from rlhf_plugin_inference.evaluate import run as evaluate
from rlhf_plugin_inference.evaluate.command import EVAL
from rlhf_plugin_inference.generate import run as generate
from rlhf_plugin_inference.generate.options import GENERATE
from rlhf_plugin_inference.worklist.configuration import record_config
from rlhf_testing.errors import has_code

COMMANDS = {"generate": (GENERATE, generate.RESUMING), "eval": (EVAL, evaluate.GOING_ON)}
FREE = {
    "generate": {
        "output",
        "engines",
        "rollout.concurrency",
        "select.mode",
        "select.threshold",
        "select.truncated",
        "log.progress",
        "resume.checkpoint",
    },
    "eval": {
        "output",
        "overwrite",
        "resume.checkpoint",
        "engines",
        "rollout.concurrency",
        "eval.metrics",
        "eval.pass_threshold",
        "report.level",
        "report.by_task",
        "report.table",
        "log.progress",
        "remote.concurrency",
        "remote.timeout_s",
        "remote.retries",
        "remote.retry_wait_s",
        "remote.key_variable",
        "remote.environment_timeout_s",
    },
}
"""Options that choose from results, measure or show them, or say how they come about and not which."""
FREE_OF_COMPONENTS = {
    "engine.name": lambda option: True,
    "eval.metrics": lambda option: True,
    "reward.use": lambda option: option in ("timeout_s", "on_error", "isolate"),
}
"""Slot -> whether an option of its components is free; of the slots that are not named none is."""
COMMON = {
    "model": {"path": "model"},
    "data": {"train": ["rows.jsonl"]},
    "reward": {"use": ["exact_match"]},
    "engine": {"name": "embedded"},
}


def with_components(command):
    """Path of each option, and whether it is free."""
    tree, _ = COMMANDS[command]
    for path, _ in fields_of(tree.model):
        yield path, path in FREE[command]
    for slot in tree.selectors:
        is_free = FREE_OF_COMPONENTS.get(slot.path, lambda option: False)
        for entry in installed(slot.hook):
            models = [entry.component.config, *filter(None, [tree.shared.get(slot.path)])]
            section = f"{slot.path.rpartition('.')[0]}.{entry.name}"
            for option, _ in (found for model in models for found in fields_of(model)):
                yield f"{section}.{option}", is_free(option)


@pytest.fixture(params=COMMANDS)
def begun(request, tmp_path):
    """A command, its configuration, and a function that goes on with a folder that has it, with another one."""
    tree, rules = COMMANDS[request.param]
    layers = COMMON, {"rollout": {"executor": "single_turn"}} if request.param == "eval" else {}
    plugins = load("")
    resolved = resolve_options([Layer.of(each, "test") for each in layers], plugins, tree)
    record_config(resolved, tmp_path, rules, is_begun=False)
    recorded = (tmp_path / "config.toml").read_text()

    def go_on(path):
        (tmp_path / "config.toml").write_text(recorded)
        other = replace(resolved, tree=with_other(resolved.tree, path))
        record_config(other, tmp_path, rules, is_begun=True)

    return request.param, go_on


def test_every_option_is_refused_by_its_name_or_free(begun):
    command, go_on = begun
    seen = dict(with_components(command))

    for path, is_free in seen.items():
        if is_free:
            go_on(path)
            continue
        with pytest.raises(
            ConfigError, match=f"(^|: ){path} is 'another'", check=has_code("resume/option-changed")
        ):
            go_on(path)

    assert seen.keys() >= FREE[command]
    assert len(seen) > 100
