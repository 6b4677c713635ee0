"""Adapters as TRL has PEFT make them."""

import pytest

from rlhf_plugin_migrate.table.outcome import Status
from rlhf_plugin_migrate.trl.scripts import SCRIPTS

grpo, sft = SCRIPTS["grpo"], SCRIPTS["sft"]


def migrated(script, text, processes=1):
    out = script.migrate(script.read(text, "x.yaml"), processes, "r.py")
    settings = {path: setting.value for path, setting in out.settings.items()}
    return settings, {row.what: row for row in out.rows()}


@pytest.mark.parametrize("script", [grpo, sft])
def test_lora_has_the_defaults_of_trl(script):
    settings, rows = migrated(script, "use_peft: true")

    assert settings["actor.adapter"] == "lora"
    assert (settings["actor.lora.rank"], settings["actor.lora.alpha"]) == (16, 32)
    assert settings["actor.lora.dropout"] == 0.05
    # PEFT's own choice for Llama and Qwen, where ours is all linear layers.
    assert settings["actor.lora.target"] == ["q_proj", "v_proj"]
    assert rows["use_peft: True"].status is Status.MAPPED


def test_details_are_kept():
    settings, _ = migrated(
        sft,
        "use_peft: true\nlora_r: 64\nlora_alpha: 16\nlora_dropout: 0.0\nuse_rslora: true\n"
        "lora_target_modules: [q_proj, o_proj]\nlora_modules_to_save: [lm_head]",
    )

    assert settings["actor.lora.rank"] == 64
    assert settings["actor.lora.use_rslora"] is True
    assert settings["actor.lora.target"] == ["q_proj", "o_proj"]
    assert settings["actor.lora.modules_to_save"] == ["lm_head"]


@pytest.mark.parametrize("value", ["all-linear", "[all-linear]"])
def test_all_linear_layers_are_our_default(value):
    settings, _ = migrated(sft, f"use_peft: true\nlora_target_modules: {value}")

    assert "actor.lora.target" not in settings


@pytest.mark.parametrize(
    ("text", "name", "four_bits"),
    [
        ("load_in_4bit: false\nuse_dora: true", "dora", Status.NOTHING),
        ("load_in_4bit: true", "qlora", Status.MAPPED),
        ("load_in_4bit: true\nuse_dora: true", "qlora", Status.MAPPED),
        ("load_in_4bit: true\nuse_vllm: true", "qlora", Status.MAPPED),
    ],
)
def test_kinds(text, name, four_bits):
    settings, rows = migrated(grpo, f"use_peft: true\n{text}")

    assert settings["actor.adapter"] == name
    assert settings[f"actor.{name}.rank"] == 16
    (row,) = (row for what, row in rows.items() if what.startswith("load_in_4bit"))
    assert row.status is four_bits
    # TRL's default; ours is true.
    assert settings.get("actor.qlora.double_quantization", True) is (name != "qlora")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("", "lora"), ("load_in_4bit: true\n", "qlora"), ("use_dora: true\n", "dora")],
)
def test_stacks_of_experts_are_kept_where_they_have_factors(kind, name):
    stacks = ["experts.gate_up_proj", "experts.down_proj"]
    settings, rows = migrated(
        grpo,
        f"use_peft: true\n{kind}lora_dropout: 0\nlora_target_parameters: [{', '.join(stacks)}]",
    )

    (row,) = (row for what, row in rows.items() if what.startswith("lora_target_parameters"))
    assert settings.get(f"actor.{name}.target_parameters") == (None if name == "dora" else stacks)
    assert row.status is (Status.MISSING if name == "dora" else Status.MAPPED)
    assert settings.get("actor.lora.serve") == ("merged" if name == "lora" else None)


def test_keys_of_the_adapter_do_nothing_without_it():
    settings, rows = migrated(sft, "lora_r: 8\nload_in_4bit: true")

    assert "actor.adapter" not in settings
    assert rows["lora_r: 8"].status is Status.NOTHING
    assert rows["load_in_4bit: True"].status is Status.MISSING


def test_the_reference_of_an_adapted_policy_has_no_processes():
    text = "use_peft: true\nbeta: 0.04\nuse_vllm: true\nvllm_mode: server"

    settings, _ = migrated(grpo, text, processes=4)

    assert "runtime.ray.ranks.reference" not in settings
    assert settings["runtime.ray.colocate"] == []


@pytest.mark.parametrize("processes", [1, 2])
def test_deepspeed_trains_beside_four_bits_at_stage_0(processes):
    settings, _ = migrated(sft, "use_peft: true\nload_in_4bit: true", processes=processes)

    assert settings["backend.name"] == ("torch" if processes == 1 else "deepspeed")
    assert settings.get("backend.deepspeed.zero_stage") == (None if processes == 1 else 0)
