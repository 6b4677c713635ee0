"""The tables against the keys of verl's own files, with their defaults."""

import tomllib
from pathlib import Path

import pytest

from rlhf_plugin_migrate.shell.script import commands
from rlhf_plugin_migrate.table.kinds import NUMBER, SWITCH, WHOLE
from rlhf_plugin_migrate.verl import programs
from rlhf_plugin_migrate.verl.common.hydra import options_of, pairs_of
from rlhf_plugin_migrate.verl.programs import TABLES

KEYS = tomllib.loads((Path(__file__).parent / "verl_keys.toml").read_text())
LEFT_OPEN = {
    "actor_rollout_ref.rollout.name",
    "model.path",
    "data.apply_chat_template_kwargs",
}
"""Keys that every run gives, or without a default of one kind."""


@pytest.mark.parametrize("program", KEYS)
def test_every_key_of_verl_has_an_entry(program):
    keys = [*KEYS[program], *KEYS[program]["others"].split()]

    assert len(keys) > 60
    assert [key for key in keys if key != "others" and TABLES[program].find(key) is None] == []


@pytest.mark.parametrize("program", KEYS)
def test_defaults_are_those_of_verl(program):
    differ = {}
    for key, value in KEYS[program].items():
        if key == "others" or key in LEFT_OPEN:
            continue
        ours, theirs = TABLES[program].find(key).default, None if value == "null" else value
        # YAML reads 1e-3 as text.
        if ours != (float(theirs) if isinstance(ours, float) else theirs):
            differ[key] = (ours, theirs)

    assert differ == {}


@pytest.mark.parametrize(
    ("program", "others"),
    [
        ("main_ppo", ["algorithm.adv_estimator=gae"]),
        ("main_ppo", ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"]),
        ("main_ppo", ["rollout.n_gpus_per_node=4", "actor_rollout_ref.actor.use_kl_loss=True"]),
        ("main_ppo", ["custom_reward_function.path=a.py", "algorithm.use_kl_in_reward=True"]),
        ("main_ppo", ["reward_model.enable=True", "actor_rollout_ref.rollout.name=hf"]),
        ("main_ppo", ["trainer.n_gpus_per_node=1", "actor_rollout_ref.model.lora_rank=8"]),
        ("sft_trainer", []),
        ("fsdp_sft_trainer", ["data.multiturn.enable=True"]),
        ("fsdp_sft_trainer", ["data.prompt_dict_keys=[a]", "trainer.test_freq=2"]),
    ],
)
def test_every_key_by_itself_has_a_line_in_the_report(program, others):
    values = {SWITCH: ("true", "false"), WHOLE: ("3", "1", "0"), NUMBER: ("0.5", "0")}
    for key, entry in TABLES[program].entries.items():
        for value in (*values.get(entry.kind, ("x", "[x]")), "null"):
            word = f"{key}={value}"
            pairs, rest = pairs_of([*others, word])
            source = options_of(pairs, rest, TABLES[program])
            outcome = programs.migrate(program, source, 2, "reward.py")

            assert [row for row in outcome.rows() if row.what == word], word


def test_a_whole_configuration_without_changes_says_nothing():
    pairs = [(key, key, value) for key, value in defaults()]
    source = options_of(pairs, [], TABLES["main_ppo"], is_whole=True)

    assert [written.text for written in source.written] == []


@pytest.mark.parametrize("name", ["grpo_math", "ppo", "gspo", "lora", "rloo", "dapo"])
def test_a_whole_configuration_means_what_its_overrides_mean(name):
    text = (Path(__file__).parent / f"commands/{name}.sh").read_text()
    (command,) = commands(text, {"HOME": "/home/me"}, Path())
    words = programs.verl_launch_of(command).words
    pairs, rest = pairs_of(words)
    whole = {key: (key, key, value) for key, value in defaults()} | {one[1]: one for one in pairs}

    found = [
        programs.migrate("main_ppo", source, None, "reward.py").settings
        for source in (
            options_of(pairs, rest, TABLES["main_ppo"]),
            options_of([*whole.values()], [], TABLES["main_ppo"], is_whole=True),
        )
    ]
    # Some options are written only where somebody asked for them.
    asked = {"runtime.sleep", "engine.vllm.compile", "engine.vllm.args.enable_chunked_prefill"}
    one, other = ({k: v.value for k, v in each.items() if k not in asked} for each in found)

    assert one == other


def defaults():
    """Yield the keys of verl's file with their values."""
    for key, value in KEYS["main_ppo"].items():
        if key != "others":
            yield (
                key,
                {"null": None, "{}": {}}.get(value, value) if isinstance(value, str) else value,
            )
