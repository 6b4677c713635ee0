"""Scripts of verl's examples and recipes, with the options of the real files, for ``rlhf train`` and ``rlhf sft``."""

import json
from pathlib import Path

import pytest

from rlhf_cli.main import main

COMMANDS = Path(__file__).parent / "commands"
SUPERVISED = {"sft", "sft_peft"}
REINFORCEMENT = sorted({path.stem for path in COMMANDS.glob("*.sh")} - SUPERVISED)


@pytest.fixture
def rows(workspace, tmp_path, tiny_model):
    """Two files of rows as verl's, of which the second is held out."""
    for name, start in (("train", 0), ("test", 100)):
        made = [
            {
                "data_source": "openai/gsm8k",
                "prompt": [{"role": "user", "content": f"{n} + 1?"}],
                "messages": [
                    {"role": "user", "content": f"{n} + 1?"},
                    {"role": "assistant", "content": str(n + 1)},
                ],
                "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
                "extra_info": {"question": f"{n} + 1?", "answer": str(n + 1)},
            }
            for n in range(start, start + 20)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return ["--model", str(tiny_model), "--data", "train.jsonl", "--eval.data", "held=test.jsonl"]


@pytest.fixture
def verl(run, workspace):
    """Migrate one of the scripts."""

    def call(name, *flags):
        return run(COMMANDS / f"{name}.sh", "--set", "HOME=/home/me", *flags)

    return call


@pytest.mark.parametrize("name", REINFORCEMENT)
def test_rlhf_train_accepts_the_result(verl, rows, name, capsys):
    migrated = verl(name)
    words = ["train", "-c", "run.toml", *rows]
    if name == "ppo_reward_model":
        words += ["--reward.reward_model.path", rows[1]]
    if "path" in migrated.config.get("critic", {}):
        words += ["--critic.path", rows[1]]

    assert migrated.code == 0, migrated.report
    assert main([*words, "--dry-run"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(SUPERVISED))
def test_rlhf_sft_accepts_the_result(verl, rows, name, capsys):
    migrated = verl(name)

    assert migrated.code == 0, migrated.report
    assert main(["sft", "-c", "run.toml", *rows, "--dry-run"]) == 0, capsys.readouterr().err


def test_grpo_counts_prompts_in_both_batches(verl):
    config = verl("grpo_math").config

    # 1024 prompts of 5 samples; updates of 256 prompts, which are 1280 sequences: 4 in a step.
    assert config["rollout"]["batch_size"] == 1024
    assert config["rollout"]["n_samples_per_prompt"] == 5
    assert config["train"]["batch_size"] == 256 * 5
    # 16 sequences of at most 1024 + 1024 tokens.
    assert config["train"]["max_tokens_per_micro_batch"] == 16 * 2048
    assert config["runtime"] == {"name": "ray", "sleep": "engine", "ray": {"gpus": 8}}
    assert config["algo"]["kl"] == {
        "mode": "loss",
        "coef": 0.001,
        "estimator": "k3",
        "tail": "clamp",
    }
    assert config["algo"]["loss"]["ppo"] == {"dual_clip": 3.0}
    assert config["data"]["train"] == [
        "/home/me/data/gsm8k/train.parquet",
        "/home/me/data/math/train.parquet",
    ]
    assert config["eval"]["data"] == [
        "gsm8k=/home/me/data/gsm8k/test.parquet",
        "math=/home/me/data/math/test.parquet",
    ]


def test_ppo(verl):
    config = verl("ppo").config

    # No groups: 1024 prompts of one sample, 4 updates of 256.
    assert (config["rollout"]["batch_size"], config["train"]["batch_size"]) == (1024, 256)
    assert config["algo"]["advantage"] == {"estimator": "gae", "gae": {"lambda_": 1.0}}
    assert config["critic"]["adam"]["lr"] == 1e-5
    assert config["critic"]["path"] == "deepseek-ai/deepseek-llm-7b-chat"
    assert "kl" not in config["algo"] or not config["algo"]["kl"]["coef"]
    assert config["reward"] == {"use": ["math"], "math": {"label_key": "reward_model.ground_truth"}}


def test_dapo(verl):
    migrated = verl("dapo")
    config = migrated.config

    # 512 prompts of 16 samples; updates of 32 prompts, which are 512 sequences: 16 in a step, on 16 x 8 GPUs.
    assert (config["rollout"]["batch_size"], config["train"]["batch_size"]) == (512, 32 * 16)
    assert config["runtime"]["ray"]["gpus"] == 128
    assert config["algo"]["loss"]["ppo"] == {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0}
    # The penalty grows from 20480 - 4096 tokens on.
    assert config["reward"]["shapers"] == ["overlong"]
    assert config["reward"]["overlong"] == {"buffer": 4096, "factor": 1.0, "max_tokens": 20480}
    assert config["rollout"]["filters"] == ["zero_variance"]
    # 10 batches at most: one, and 9 more.
    assert config["rollout"]["max_refills"] == 9
    assert config["backend"]["deepspeed"]["sequence_parallel"] == 8
    # (2048 + 20480) tokens on each of 8 ranks that share a sequence.
    assert config["train"]["max_tokens_per_micro_batch"] == 22528
    assert config["eval"]["temperatures"] == [1.0]
    assert "divide 10 by it" in " ".join(migrated.report.split())


def test_branches_of_another_machine_are_not_taken(verl):
    migrated = verl("devices")
    config = migrated.config

    assert config["rollout"]["batch_size"] == 1024
    assert config["data"]["max_prompt_tokens"] == 1024
    assert config["train"]["max_tokens_per_micro_batch"] == (1024 + 2048) * 8
    assert config["runtime"]["ray"]["gpus"] == 8
    assert "compile" not in config["engine"]["vllm"]
    assert "the machine is not probed: gpu is taken" in " ".join(migrated.report.split())

    other = verl("devices", "--set", "DEVICE=npu", "-o", "npu.toml")
    assert other.code == 0
    assert "data.train_batch_size=16 " in other.report


def test_an_adapter_and_images(verl):
    assert verl("lora").config["actor"]["lora"] == {"rank": 64, "alpha": 32}
    images = verl("images", "-o", "images.toml")
    assert 'model.vision = "vlm"' in images.report


def test_losses_and_estimators(verl):
    names = ("gspo", "rloo", "remax", "reinforce_pp_baseline", "cispo")
    algo = {name: verl(name, "-o", f"{name}.toml").report for name in names}

    for name, expected in (
        ("gspo", 'algo.loss.policy = "gspo_token"'),
        ("rloo", 'algo.advantage.estimator = "rloo"'),
        ("remax", 'algo.advantage.estimator = "remax"'),
        ("reinforce_pp_baseline", 'algo.advantage.estimator = "reinforce_baseline"'),
        ("cispo", 'algo.loss.policy = "cispo"'),
    ):
        assert expected in algo[name]


def test_tools_are_listed_with_what_to_write(verl):
    report = " ".join(verl("tools").report.split())

    assert "tools and turns are an environment here (docs/tools.md)" in report
    assert "verl's tools and interactions are not part of this configuration" in report


def test_engines_of_their_own_generate_while_the_trainer_works(verl):
    config = verl("fully_async").config

    # 4 + 4 GPUs; the trainer waits for 4 batches of 32 prompts; 51200 prompts in all.
    assert config["runtime"]["ray"] == {"ranks": {"policy": 4}, "engines": 4, "colocate": []}
    assert config["rollout"]["batch_size"] == 128
    assert config["train"]["steps"] == 512 * 100 // 128
    assert config["rollout"]["max_staleness"] == 1
    assert config["rollout"]["in_flight_updates"] is True


def test_supervised_fine_tuning(verl):
    old = verl("sft_peft").config
    new = verl("sft", "-o", "new.toml").report

    assert old["data"]["form"] == "verl"
    assert old["actor"]["lora"] == {"rank": 32, "alpha": 16}
    assert old["actor"]["lr_schedule"] == "cosine"
    assert old["actor"]["warmup_ratio"] == 0.1
    assert old["runtime"]["ray"]["ranks"]["policy"] == 8
    assert old["train"]["batch_size"] == 256
    assert 'data.messages_key = "messages"' in new


SCHEDULED = (
    *("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo"),
    *("actor_rollout_ref.actor.optim.lr=1e-6", "trainer.total_training_steps=200"),
)
OPTIM = "actor_rollout_ref.actor.optim"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lr_scheduler_type=cosine", "num_cycles=1.5"], {"cosine": {"num_cycles": 1.5}}),
        (["lr_warmup_steps=20", "lr_warmup_init=1e-7"], {"init_lr_ratio": 0.1}),
        (["lr_warmup_steps=20", "init_lr_ratio=0.25"], {"init_lr_ratio": 0.25}),
        (["lr_decay_style=linear", "lr_decay_steps=150"], {"linear": {"end_share": 0.75}}),
        (["lr_scheduler_type=constant", "num_cycles=2", "lr_decay_steps=150"], {}),
    ],
)
def test_the_course_of_a_learning_rate_is_carried_over(run, workspace, words, expected):
    migrated = run("--", *SCHEDULED, *(f"+{OPTIM}.{word}" for word in words))

    actor = migrated.config["actor"]
    assert migrated.code == 0, migrated.report
    assert {key: actor[key] for key in expected} == expected
    if not expected:
        assert not {"cosine", "linear", "init_lr_ratio"} & actor.keys()


def test_where_a_rate_has_fallen_needs_the_number_of_steps(run, workspace):
    words = (*SCHEDULED[:-1], f"+{OPTIM}.lr_decay_style=linear", f"+{OPTIM}.lr_decay_steps=150")

    report = " ".join(run("--", *words).report.split())

    assert "divide 150 by it for actor.linear.end_share" in report


def test_a_script_of_another_algorithm_is_refused(run, tmp_path):
    (tmp_path / "s.sh").write_text("python3 -m recipe.prime.main_prime data.train_batch_size=8\n")

    migrated = run(tmp_path / "s.sh")

    assert migrated.code == 2
    assert "recipe.prime.main_prime" in migrated.report


def test_an_estimator_of_ones_own_has_no_equivalent_and_a_stand_in_that_is_named(run, workspace):
    words = ["python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=my_median"]

    migrated = run("--", *words)

    assert "algo.advantage.estimator" in migrated.report
    assert "--estimator FILE.py:NAME" in " ".join(migrated.report.split())
    assert "in the place of my_median; see the report" in Path("run.toml").read_text()
    assert run("--strict", "--", *words, output="strict.toml").code == 1


def test_held_out_prompts_are_sampled_from_a_nucleus_of_their_own(verl):
    migrated = verl("dapo")

    # val_kwargs has top_p 0.7 and top_k -1, which is that of training.
    assert migrated.config["rollout"].get("top_p", 1.0) == 1.0
    assert migrated.config["eval"]["top_p"] == 0.7
    assert "top_k" not in migrated.config["eval"]
