"""The core never names a component: the defaults of the command line are the only place that does."""

import ast
import tomllib
from pathlib import Path

import rlhf_core
from rlhf_config.automatic.choosing import AUTO
from rlhf_config.layers import lookup
from rlhf_config.run import RunConfig
from rlhf_config.sections import options_of
from rlhf_config.train import SLOTS
from rlhf_core.plugins import load

CORE = Path(rlhf_core.__file__).parent

ALLOWED = {
    (path, library): "a library"
    for path in ("fingerprint.py", "testing/checks.py")
    for library in ("torch", "ray", "vllm", "deepspeed")
} | {
    **{
        (path, "generate"): "a phase of a step"
        for path in ("durable/faults.py", "rollouts/players.py")
    },
    ("weights/link.py", "plan"): "how weights lie in buckets",
    ("lazy.py", "torch"): "the library",
    ("config/automatic/accelerators.py", "torch"): "the library",
    **{
        (path, "linear"): "a form of the KL's tail"
        for path in (
            "math/kl.py",
            "contracts/objective.py",
            "config/run.py",
            "testing/conformance/kinds/backends.py",
        )
    },
    **{
        ("math/ratios.py", name): "an estimate between sampler and trainer"
        for name in ("k1", "k2", "k3")
    },
    ("loop/describe.py", "constant"): "a rate without a schedule",
    ("data/learned/chat_spans.py", "function"): "a key of tool calls",
    ("testing/fake_renderer.py", "function"): "a key of tool calls",
    ("contracts/executor.py", "function"): "a key of tool calls",
    ("data/chat/parsing/blocks.py", "function"): "a key of tools",
    ("data/chat/probing.py", "function"): "a key of tools",
    ("data/chat/short_histories.py", "function"): "a key of tools and of their calls",
    ("data/chat/turns.py", "function"): "a key of tool calls",
    ("data/chat/template_kwargs.py", "tools"): "a variable of chat templates",
    **{
        (f"data/chat/template/{name}.py", "function"): "a key of tool calls"
        for name in ("pieces", "contents", "presence")
    },
    ("data/forms/chats.py", "function"): "a key of tool calls",
    ("data/forms/beside.py", "tools"): "a column of rows",
    ("data/forms/recognizing.py", "tools"): "a column of rows",
    ("contracts/environment.py", "single_turn"): "a kind of episodes",
    ("contracts/environment.py", "multi_turn"): "a kind of episodes",
    ("contracts/environment.py", "tools"): "a kind of episodes",
    ("environments/messages.py", "tools"): "a field of observations",
}
"""Words that happen to be names of components too, and what they are here."""


def first_party_names():
    names = {
        name
        for hook, registry in load("").registries.items()
        if hook != "rlhf_commands"  # commands are typed, not chosen
        for entry in registry
        if entry.distribution is not None
        and entry.distribution.metadata["Name"].startswith("rlhf-plugin-")
        for name in (entry.name, *entry.component.aliases)
    }
    defaults = Path(__file__).parents[3] / "cli" / "src" / "rlhf_cli" / "defaults.toml"
    chosen = tomllib.loads(defaults.read_text())
    return names | {lookup(chosen, slot.path) for slot in SLOTS} - {None, AUTO}


def constants(path):
    """Strings in the code, docstrings left out."""
    tree = ast.parse(path.read_text())
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]


def test_there_are_names_to_look_for():
    assert {"ppo", "gae", "reinforce_baseline", "adam"} <= first_party_names()


def test_the_core_names_no_component():
    names = first_party_names()
    found = {
        (str(path.relative_to(CORE)), text)
        for path in CORE.rglob("*.py")
        for text in constants(path)
        if text in names
    }

    assert found - ALLOWED.keys() == set()


def test_every_required_selector_has_a_default():
    defaults = Path(__file__).parents[3] / "cli" / "src" / "rlhf_cli" / "defaults.toml"
    values = tomllib.loads(defaults.read_text())

    assert [slot.path for slot in SLOTS if lookup(values, slot.path)] == [
        "runtime.name",
        "engine.name",
        "backend.name",
        "rollout.executor",
        "algo.advantage.estimator",
        "algo.loss.policy",
        "algo.kl.estimator",
        "actor.optim",
        "critic.optim",
    ]


def test_no_component_has_the_name_of_an_option_of_its_section():
    """Its own options would have no place."""
    registries = load("").registries
    taken = {
        (slot.path, entry.name)
        for slot in SLOTS
        for entry in registries[slot.hook]
        if f"{slot.section}.{entry.name}" in set(options_of(RunConfig))
        or any(
            option.startswith(f"{slot.section}.{entry.name}.") for option in options_of(RunConfig)
        )
    }

    assert taken == set()
