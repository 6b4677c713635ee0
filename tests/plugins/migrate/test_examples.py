"""The commands of OpenRLHF's README and example scripts, with tiny files in place of theirs, for ``rlhf train``."""

import importlib.util
import subprocess
import sys

import pytest
from tests.deadlines import HANG_S

from rlhf_cli.main import main

EXAMPLES = (
    "ppo_hybrid",
    "dapo",
    "prorl",
    "agent_async",
    "reward_function_slurm",
    "images",
    "flat_names",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rlhf_train_accepts_the_result(example, name, capsys):
    migrated = example(f"{name}.sh")

    assert migrated.code == 0, migrated.report
    assert main(["train", "-c", "run.toml", "--check"]) == 0, capsys.readouterr().err
    assert main(["train", "-c", "run.toml", "--dry-run"]) == 0, capsys.readouterr().err


def test_ppo_with_a_reward_model_on_shared_gpus(example, workspace):
    config = example("ppo_hybrid.sh").config

    assert config["runtime"]["sleep"] == "always"
    assert config["algo"]["advantage"] == {"estimator": "gae", "gae": {"lambda_": 1.0}}
    assert config["runtime"]["ray"] == {
        "engines": 8,
        "ranks": {"policy": 8, "critic": 8, "reference": 8},
    }
    # OpenRLHF starts the critic from the reward model, which has no output head and could not be loaded as one.
    assert "path" not in config["critic"]
    assert config["critic"]["adam"]["lr"] == 9e-6
    assert config["reward"]["reward_model"] == {
        "path": workspace["REWARD_MODEL"],
        "normalize": "model",
    }
    assert config["reward"]["shapers"] == ["clip"]
    assert config["rollout"]["max_length"] == 2048
    assert config["rollout"]["max_new_tokens"] == 1024
    assert config["data"]["max_prompt_tokens"] == 1024
    assert config["algo"]["kl"] == {"coef": 0.01}
    assert config["algo"]["correction"] == {"kind": "tis", "tis": {"high": 5.0, "low": 0.5}}
    assert config["actor"]["lr_schedule"] == "cosine"


def test_prompts_with_images(example):
    config = example("images.sh").config

    assert config["model"]["vision"] == "vlm"
    assert config["data"]["image_key"] == "images"
    assert config["data"]["max_images"] == 1
    assert config["actor"]["freeze_visual_encoder"] is True


def test_dapo(example):
    config = example("dapo.sh").config

    assert config["reward"]["use"] == ["run_reward.py:openrlhf_reward"]
    assert config["reward"]["shapers"] == ["overlong"]
    # The response may take all of max_len, so OpenRLHF's penalty begins at 2048 - 512 tokens.
    assert config["reward"]["overlong"] == {"buffer": 512, "factor": 0.5, "max_tokens": 2048}
    assert config["rollout"]["filters"] == ["dynamic_sampling"]
    assert config["algo"]["loss"]["ppo"] == {"clip_low": 0.2, "clip_high": 0.27}
    assert config["algo"]["loss"]["aggregation"] == "token-mean"
    assert config["algo"]["kl"] == {
        "coef": 1e-3,
        "mode": "loss",
        "estimator": "k3",
        "tail": "clamp",
    }
    # 8 sequences of at most 2048 tokens.
    assert config["train"]["max_tokens_per_micro_batch"] == 16384


def test_prorl_evaluates_and_keeps_the_best_checkpoint(example):
    config = example("prorl.sh").config

    assert config["eval"] == {
        "data": ["rows=rows.jsonl"],
        "every": 5,
        "split": "train",
        "temperatures": [1.0],
        "n_samples": 4,
        "at_start": False,
    }
    assert config["checkpoint"]["best_metric"] == "eval/rows/T1/reward"
    assert config["data"]["max_prompt_tokens"] == 9216 - 8192


def test_an_agent_becomes_an_environment_that_has_to_be_written(example):
    migrated = example("agent_async.sh")
    config = migrated.config

    assert config["env"]["use"] == ["agent_func.py:AgentEnvironment"]
    assert config["rollout"]["executor"] == "multi_turn"
    assert (config["rollout"]["max_staleness"], config["rollout"]["in_flight_updates"]) == (1, True)
    # Without a limit of its own, a turn may take all that is left; OpenRLHF's limit only cuts prompts.
    assert config["rollout"]["max_new_tokens"] == config["rollout"]["max_length"] == 74240
    assert config["data"]["max_prompt_tokens"] == 74240 - 64000
    assert config["runtime"]["ray"]["colocate"] == ["policy+reference"]
    assert config["runtime"]["ray"]["gpus_per"] == {"engine": 2}
    assert config["backend"]["deepspeed"]["sequence_parallel"] == 2
    assert config["resume"]["checkpoint"] == "auto"
    assert "AgentExecutor cannot be used as it is" in migrated.report


def test_an_agent_without_an_environment_is_refused_with_a_reason(example, workspace):
    workspace["AGENT"] = "nowhere.py"

    migrated = example("agent_async.sh")

    assert migrated.code == 1
    assert "rlhf train refuses this configuration" in migrated.report
    assert "nowhere.py" in migrated.report


def test_roles_apart_within_srun(example):
    config = example("reward_function_slurm.sh").config

    assert config["runtime"]["ray"]["colocate"] == ["policy+reference"]
    assert config["runtime"]["ray"]["engines"] == 4
    assert config["engine"]["vllm"]["args"]["tensor_parallel_size"] == 2
    assert config["backend"]["deepspeed"]["offload_optimizer"] is True


def test_flat_names_and_servers(example):
    config = example("flat_names.sh").config

    assert config["reward"]["http"]["urls"] == [
        "http://127.0.0.1:5000/get_reward",
        "http://127.0.0.1:5001/get_reward",
    ]
    assert config["reward"]["http"]["choose"] == "round_robin"
    assert config["data"]["template"] == "User: {question}\nAssistant: "
    assert "prompt_key" not in config["data"]
    assert config["algo"]["correction"] == {
        "kind": "seq_mask_tis",
        "seq_mask_tis": {"low": 0.8, "high": 2.0},
    }
    assert config["actor"]["max_norm"] == 0.5
    assert config["actor"]["adam"] == {"lr": 1e-6, "weight_decay": 0.01}
    assert "lr_schedule" not in config["actor"] or config["actor"]["lr_schedule"] == "constant"


def test_the_written_function_calls_the_users_as_openrlhf_does(example, tmp_path):
    example("prorl.sh")
    spec = importlib.util.spec_from_file_location("run_reward", tmp_path / "run_reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    found = module.openrlhf_reward("1 + 1 =", " 2", {"answer": "2"})

    assert found == {"reward": 1.0, "score": 1.0, "length": 9.0}


def test_no_secret_of_the_script_gets_into_the_result(example, tmp_path):
    report = example("ppo_hybrid.sh").report

    for text in (report, (tmp_path / "run.toml").read_text()):
        assert "a-secret" not in text
        assert "wandb_token" not in text


@pytest.mark.slow
def test_the_result_trains(example, tmp_path):
    """In one process, with what OpenRLHF has no smaller choice of turned down."""
    assert example("prorl.sh").code == 0

    words = ["--runtime", "local", "--engine", "embedded", "--backend", "torch", "--steps", "1"]
    words += ["--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "2"]
    words += [
        "--rollout.max_new_tokens",
        "8",
        "--train.batch_size",
        "8",
        "--rollout.max_refills",
        "1",
    ]
    words += ["--rollout.dynamic_sampling.low", "-1", "--rollout.dynamic_sampling.high", "2"]
    words += ["--eval.n_samples", "1", "--output", "trained", "--model.dtype", "float32"]
    # The script evaluates on the file that it trains on; a part of it is not trained on here.
    words += ["--data.max_samples", "30"]
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli", "train", "-c", "run.toml", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trained/model/config.json").is_file()
