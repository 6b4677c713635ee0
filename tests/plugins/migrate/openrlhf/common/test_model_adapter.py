"""LoRA, and weights in 4 bits."""

import pytest

from rlhf_plugin_migrate.table.outcome import Status


def test_an_adapter_gets_its_section_for_policy_and_critic(outcome):
    settings, rows = outcome(
        "--ds.lora.rank 32 --ds.lora.dropout 0.1 --ds.lora.target_modules q_proj v_proj"
    )

    for role in ("actor", "critic"):
        assert settings[f"{role}.adapter"] == "lora"
        assert settings[f"{role}.lora.rank"] == 32
        assert settings[f"{role}.lora.alpha"] == 16  # OpenRLHF's default; ours is twice the rank.
        assert settings[f"{role}.lora.dropout"] == 0.1
        assert settings[f"{role}.lora.target"] == ["q_proj", "v_proj"]
    assert rows["--ds.lora.rank 32"].status is Status.MAPPED


@pytest.mark.parametrize("modules", ["", "--ds.lora.target_modules all-linear"])
def test_all_linear_layers_are_the_default(outcome, modules):
    settings, _ = outcome(f"--ds.lora.rank 8 {modules}")

    assert "actor.lora.target" not in settings


def test_the_reference_of_an_adapted_policy_has_no_processes(outcome):
    flags = "--ref.num_gpus_per_node 8 --train.colocate_actor_ref --algo.advantage.estimator rloo"

    whole, _ = outcome(flags)
    adapted, rows = outcome(f"{flags} --ds.lora.rank 8")

    assert whole["runtime.ray.ranks.reference"] == 8
    assert "runtime.ray.ranks.reference" not in adapted
    assert adapted["runtime.ray.colocate"] == []
    assert "the policy without its adapter" in rows["--ref.num_gpus_per_node 8"].text


def test_without_a_rank_there_is_no_adapter(outcome):
    settings, rows = outcome("--ds.lora.alpha 32 --ds.load_in_4bit")

    assert not [path for path in settings if "adapter" in path or "lora" in path]
    assert rows["--ds.lora.alpha 32"].status is Status.NOTHING
    assert rows["--ds.load_in_4bit"].status is Status.MISSING


def test_four_bits_where_nothing_samples(learned):
    settings, rows = learned("train_sft", "--lora_rank 8 --load_in_4bit")

    assert settings["actor.adapter"] == "qlora"
    assert settings["actor.qlora.rank"] == 8
    assert settings["backend.deepspeed.zero_stage"] == 0
    assert rows["--load_in_4bit"].status is Status.MAPPED


def test_four_bits_beside_vllm_which_unpacks_the_same(outcome):
    settings, rows = outcome("--ds.lora.rank 8 --ds.load_in_4bit")

    assert settings["actor.adapter"] == settings["critic.adapter"] == "qlora"
    assert settings["backend.deepspeed.zero_stage"] == 0
    assert rows["--ds.load_in_4bit"].status is Status.MAPPED


def test_a_stage_that_casts_packed_integers_is_named(outcome):
    settings, rows = outcome("--ds.lora.rank 8 --ds.load_in_4bit --ds.zero_stage 3")

    assert settings["backend.deepspeed.zero_stage"] == 0
    assert rows["--ds.zero_stage 3"].status is Status.DIFFERS
    assert "at stage 0, and not at 3" in rows["--ds.zero_stage 3"].text


@pytest.mark.parametrize("name", ["lora", "qlora"])
def test_rlhf_train_accepts_an_adapter_beside_vllm(run, workspace, name):
    words = "--actor.model_name_or_path m --data.prompt_dataset d.jsonl --vllm.num_engines 1 --ds.lora.rank 8"
    words += " --ds.load_in_4bit" * (name == "qlora")
    reward = "--reward.remote_url http://127.0.0.1:5000/get_reward"

    migrated = run(
        "--", "python", "-m", "openrlhf.cli.train_ppo_ray", *words.split(), *reward.split()
    )

    assert migrated.code == 0, migrated.report
    for role in ("actor", "critic"):
        assert migrated.config[role]["adapter"] == name
        assert migrated.config[role][name] == {"rank": 8, "alpha": 16}
