"""Files of prime-rl's own recipes, for ``rlhf train`` and ``rlhf sft``."""

import shutil
from pathlib import Path

import pytest

from rlhf_cli.main import main

FILES = Path(__file__).parent / "files"


@pytest.fixture
def prime(run, workspace):
    """Migrate one of the files."""

    def call(name, *flags):
        return run(FILES / f"{name}.toml", *flags)

    return call


@pytest.mark.parametrize(
    "name", ["reverse_text", "wordle", "wiki_search", "two_sources", "teacher"]
)
def test_rlhf_train_accepts_the_result(prime, name, tiny_model, capsys):
    migrated = prime(name)
    words = ["train", "-c", "run.toml", "--model", str(tiny_model)]
    if name == "teacher":
        words += ["--algo.teacher.path", str(tiny_model)]

    assert migrated.code == 0, migrated.report
    assert main([*words, "--check"]) == 0, capsys.readouterr().err


def test_rlhf_sft_accepts_the_result(prime, tiny_model, capsys):
    migrated = prime("sft")
    words = ["sft", "-c", "run.toml", "--model", str(tiny_model), "--data", "rows.jsonl"]

    assert migrated.code == 0, migrated.report
    assert migrated.config["train"]["batch_size"] == 32
    assert migrated.config["actor"]["adam"]["lr"] == 2e-5
    assert main([*words, "--check"]) == 0, capsys.readouterr().err


def test_samples_of_a_step_are_prompts_times_their_samples(prime):
    config = prime("reverse_text").config

    # 128 samples of 16 for each prompt, in one update.
    assert config["rollout"]["batch_size"] == 8
    assert config["rollout"]["n_samples_per_prompt"] == 16
    assert config["train"] == {"steps": 20, "batch_size": 128, "max_tokens_per_micro_batch": 2048}
    assert config["rollout"]["max_length"] == 2048
    assert config["rollout"]["max_new_tokens"] == 128
    assert config["rollout"]["max_staleness"] == 8
    assert config["runtime"]["ray"] == {"engines": 1, "colocate": [], "ranks": {"policy": 1}}
    assert config["actor"]["adam"]["lr"] == 3e-6


def test_the_default_loss_is_dppo_around_the_sampler(prime):
    loss = prime("reverse_text").config["algo"]["loss"]

    assert loss["policy"] == "dppo"
    assert loss["dppo"] == {"threshold": 0.2, "max_ratio": "none"}
    assert loss["old_logprobs"] == "rollout"


def test_each_source_is_an_environment_with_a_section_of_its_own(prime):
    migrated = prime("two_sources")
    config = migrated.config

    assert config["env"]["use"] == ["reverse_text_a=verifiers", "reverse_text_b=verifiers"]
    # What is the bridge's default, the harness null in a subprocess, is not written.
    assert config["env"]["reverse_text_a"] == {"id": "reverse-text"}
    # The source of the evaluation is the taskset of the last one.
    assert config["env"]["reverse_text_b"] == {"id": "reverse-text", "eval_tasks": 64}
    assert config["eval"]["every"] == 5
    assert "contrib/rlhf-bridge-verifiers" in migrated.report


def test_an_adapter(prime):
    lora = prime("wiki_search").config["actor"]["lora"]

    assert lora["rank"] == 8
    assert lora["target"][:2] == ["q_proj", "k_proj"]


def test_a_teacher_is_loaded_and_not_asked(prime):
    config = prime("teacher").config

    assert config["algo"]["loss"]["policy"] == "distill"
    assert config["algo"]["teacher"]["path"] == "PrimeIntellect/Qwen3-0.6B-Reverse-Text-RL"
    assert "filters" not in config["rollout"]


def test_one_sample_of_each_prompt_teaches_nothing_and_is_said(prime):
    migrated = prime("math")

    assert migrated.code == 1
    assert "rollout.n_samples_per_prompt is 1" in migrated.report
    assert migrated.config["runtime"]["ray"]["ranks"]["policy"] == 16
    # 2 nodes of 8 GPUs, 8 for each engine.
    assert migrated.config["runtime"]["ray"]["engines"] == 2


def test_a_launch_names_files_of_which_the_later_wins_and_flags_win_over_both(run, workspace):
    shutil.copy(FILES / "reverse_text.toml", "base.toml")
    Path("more.toml").write_text('max_steps = 30\n[model]\nname = "other/model"\n')

    migrated = run(
        *("--", "TOKEN=secret", "uv", "run", "rl", "@", "base.toml", "@", "more.toml"),
        *("--max-steps", "40", "--orchestrator.group-size", "8"),
    )

    assert migrated.code == 0, migrated.report
    assert migrated.config["model"]["path"] == "other/model"
    assert migrated.config["train"]["steps"] == 40
    assert migrated.config["rollout"]["n_samples_per_prompt"] == 8
    assert "uv run ..." in migrated.report
    assert "secret" not in migrated.report


def test_a_file_may_be_that_of_one_section(run, workspace):
    Path("orch.toml").write_text("batch_size = 64\n[train.sampling]\ntemperature = 0.7\n")
    Path("train.toml").write_text("[optim]\nlr = 2e-6\n")
    words = ("rl", "--trainer", "@", "train.toml", "--orchestrator", "@", "orch.toml")

    migrated = run("--", "uv", "run", *words, "--model.name", "{odd", "--clean")

    assert migrated.config["actor"]["adam"]["lr"] == 2e-6
    assert migrated.config["rollout"]["temperature"] == 0.7
    assert migrated.config["model"]["path"] == "{odd"
    assert "Not understood" not in migrated.report


def test_environments_of_the_first_api_are_those_of_verifiers_0_3(run, workspace):
    Path("old.toml").write_text(
        'wandb.project = "p"\n'
        "[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\n"
        '[[orchestrator.env]]\nid = "primeintellect/wordle"\nargs = { difficulty = "easy" }\n'
        "[trainer.model]\n"
    )

    migrated = run("old.toml")

    assert migrated.code == 0, migrated.report
    assert migrated.config["env"]["use"] == ["primeintellect_wordle=verifiers_v0"]
    assert migrated.config["env"]["primeintellect_wordle"] == {
        "id": "primeintellect/wordle",
        "kwargs": {"difficulty": "easy"},
    }


def test_a_file_for_neither_program_is_refused(run, workspace):
    Path("x.toml").write_text("[inference]\n")

    migrated = run("x.toml")

    assert migrated.code == 2
    assert "expected a file for prime-rl's rl" in migrated.report


LONG_ANSWERS = """
[orchestrator.eval.sampling]
max_completion_tokens = 4096
temperature = 0.6
top_p = 0.95
top_k = -1
"""


def test_held_out_tasks_may_have_longer_answers(run, workspace, tmp_path):
    text = (FILES / "two_sources.toml").read_text()
    short = "[orchestrator.eval.sampling]\nmax_completion_tokens = 128\n"
    assert short in text
    (tmp_path / "long.toml").write_text(text.replace(short, LONG_ANSWERS.strip() + "\n"))

    config = run(tmp_path / "long.toml").config

    assert config["rollout"]["max_length"] == 2048
    assert (
        config["eval"]
        | {
            "temperatures": [0.6],
            "top_p": 0.95,
            "top_k": 0,
            "max_new_tokens": 4096,
            "max_length": 2048 + 4096,
        }
        == config["eval"]
    )
