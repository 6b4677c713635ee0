"""The script that a file is for, and each key in the company of others."""

import tomllib
from pathlib import Path

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_migrate.table.entries import Rule, To
from rlhf_plugin_migrate.table.kinds import NUMBER, SWITCH, TEXT, WHOLE
from rlhf_plugin_migrate.trl.scripts import SCRIPTS, script_of
from rlhf_testing.errors import has_code

FIELDS = tomllib.loads((Path(__file__).parent / "trl_keys.toml").read_text())
OWN = {
    "grpo": ("GRPOConfig", "GRPOScriptArguments"),
    "sft": ("SFTConfig", "ScriptArguments"),
    "dpo": ("DPOConfig", "ScriptArguments"),
}
VALUES = {SWITCH: "true", WHOLE: "4", NUMBER: "0.5", TEXT: "text"}
BASES = {
    "grpo": (
        "seed: 1",
        "use_vllm: true\nbeta: 0.04\nvllm_mode: server",
        "importance_sampling_level: sequence\nloss_type: grpo\nuse_vllm: true",
        "loss_type: cispo\neval_strategy: steps\ndataset_name: a",
        "loss_type: vespo\nuse_adaptive_entropy: true\nmax_steps: 8",
        "use_peft: true\nload_in_4bit: true",
    ),
    "sft": (
        "seed: 1",
        "eval_strategy: steps\ndataset_name: a\nuse_peft: true",
        "completion_only_loss: true\nuse_peft: true\nload_in_4bit: true",
        "dataset_text_field: body\neval_strategy: epoch\ndataset_name: a",
    ),
    "dpo": ("seed: 1", "loss_type: ipo\nuse_peft: true\nuse_dora: true", "label_smoothing: 0.1"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_field_has_an_entry(name):
    for group in (*OWN[name], "TrainingArguments", "ModelConfig"):
        assert sorted(set(FIELDS[group]) - SCRIPTS[name].keys.keys()) == []


@pytest.mark.parametrize(
    ("name", "base"), [(name, base) for name, bases in BASES.items() for base in bases]
)
def test_every_key_gets_a_row_in_any_company_and_sets_no_undeclared_option(name, base):
    script = SCRIPTS[name]
    for entry in script.keys.values():
        if f"{entry.name}:" in base:
            continue
        value = VALUES.get(entry.kind, entry.kind.name.removeprefix("one of ").partition(",")[0])
        text = f"{base}\n{entry.name}: {value}"
        out = script.migrate(script.read(text, "x.yaml"), 2, "r.py")
        rows = list(out.rows())

        assert len(rows) == len(text.split("\n")), entry.name
        assert rows[-1].text, entry.name
        if isinstance(entry.fate, Rule):
            by_it = {path for path, found in out.settings.items() if entry.name in found.sources}
            extra = {path for path in by_it if not path.startswith("runtime.ray.ranks")}
            assert extra <= set(entry.fate.options), entry.name
        elif isinstance(entry.fate, To):
            assert entry.fate.option in out.settings, entry.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("reward_funcs: accuracy_reward\nseed: 1", "grpo"),
        ("assistant_only_loss: true\nmax_length: 8", "sft"),
        ("beta: 0.1\nmax_length: 8", "dpo"),
    ],
)
def test_keys_say_which_script_a_file_is_for(text, name):
    assert script_of(text, "x.yaml") == name


def test_a_file_that_fits_several_scripts_needs_a_word():
    with pytest.raises(
        ConfigError,
        match="--script grpo or --script sft or --script dpo",
        check=has_code("migrate/several-scripts"),
    ):
        script_of("seed: 1", "x.yaml")
