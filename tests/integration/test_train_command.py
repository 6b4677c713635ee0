"""``rlhf train`` on a folder and files that this repository has never seen, from the outside."""

import json
from pathlib import Path

import numpy as np
import pytest


def steps_of(metrics: list[dict]) -> list[dict]:
    return [line for line in metrics if "metrics" in line]


def test_a_run_leaves_everything_that_repeats_and_explains_it(train, workspace):
    train("run", "--steps", "2", "--eval.fraction", "0.2")

    run = workspace / "run"
    expected = {"config.toml", "plugins.json", "metrics.jsonl", "samples.jsonl", "ledger.jsonl"}
    assert expected <= {path.name for path in run.iterdir()}
    assert (run / "checkpoints" / "step-00000002" / "manifest.json").exists()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(run / "model")
    AutoTokenizer.from_pretrained(run / "model")


def test_the_recorded_configuration_repeats_the_run(train, workspace):
    from rlhf_cli.main import main

    first = train("first")
    assert main(["train", "-c", "first/config.toml", "--output", "second"]) == 0

    second = [json.loads(line) for line in Path("second/metrics.jsonl").read_text().splitlines()]
    assert [line["metrics"] for line in steps_of(second)] == [
        line["metrics"] for line in steps_of(first)
    ]


def test_rollout_and_trainer_agree_on_every_logprob(train):
    for line in steps_of(train("run")):
        assert line["metrics"]["mismatch/logprob_diff_max"] <= 1e-4


@pytest.mark.parametrize(
    ("dtype", "compute_dtype", "weights"),
    [
        ("float32", "bfloat16", "shared"),
        ("bfloat16", "auto", "shared"),
        ("bfloat16", "bfloat16", "copy"),
    ],
)
def test_rollout_and_trainer_agree_in_bfloat16(train, dtype, compute_dtype, weights):
    flags = ["--model.dtype", dtype, "--backend.torch.compute_dtype", compute_dtype]
    flags += ["--engine.embedded.weights", weights, "--reward", "vary.py:vary"]
    metrics = steps_of(train("run", *flags))

    assert len(metrics) == 2
    for line in metrics:
        # Logits of size 0.1, of which bfloat16 holds 8 bits: roundings of hidden states add up to some 1e-3.
        assert line["metrics"]["mismatch/logprob_diff_max"] <= 5e-3
        assert line["metrics"]["policy/grad_norm"] > 0


def test_another_slot_count_or_micro_batch_samples_the_same_tokens(train, workspace):
    train("many")
    train("few", "--engine.embedded.slots", "3", "--train.max_tokens_per_micro_batch", "16")

    many, few = (
        [json.loads(line) for line in (workspace / name / "samples.jsonl").read_text().splitlines()]
        for name in ("many", "few")
    )
    first_step = [line for line in many if line["step"] == 1]
    assert [(s["uid"], s["response"]) for s in first_step] == [
        (s["uid"], s["response"]) for s in few if s["step"] == 1
    ]


@pytest.mark.parametrize(
    "estimator", ["gae", "reinforce", "reinforce_baseline", "rloo", "group_norm", "dr_grpo"]
)
def test_every_estimator_takes_finite_steps(train, estimator):
    metrics = steps_of(train(estimator, "--estimator", estimator))

    assert len(metrics) == 2
    assert all(np.isfinite(value) for line in metrics for value in line["metrics"].values())


@pytest.mark.parametrize(("mode", "estimator"), [("reward", "k1"), ("loss", "k2"), ("loss", "k3")])
def test_a_kl_is_measured_against_the_reference(train, mode, estimator):
    flags = ["--algo.kl.mode", mode, "--algo.kl.estimator", estimator, "--algo.kl.coef", "0.1"]
    metrics = steps_of(train("run", *flags, "--actor.adam.lr", "0.01", "--steps", "3"))

    # before the first update policy and reference are the same weights
    assert metrics[0]["metrics"]["kl/ref"] == pytest.approx(0.0, abs=1e-6)
    assert abs(metrics[2]["metrics"]["kl/ref"]) > 1e-6


def test_an_adaptive_kl_coefficient_moves(train):
    flags = ["--algo.kl.coef", "0.1", "--algo.kl.target", "0.5", "--algo.kl.horizon", "100"]
    metrics = steps_of(train("run", *flags))

    # KL 0 is below the target: coef * (1 - 0.2 * 12 / 100)
    assert metrics[1]["metrics"]["kl/coef"] == pytest.approx(0.1 * (1 - 0.2 * 12 / 100), rel=1e-3)


def test_several_minibatches_and_inner_epochs(train):
    flags = ["--train.batch_size", "4", "--train.inner_epochs", "2", "--actor.adam.lr", "0.01"]
    metrics = steps_of(train("run", *flags))

    assert all(np.isfinite(line["metrics"]["policy/approx_kl"]) for line in metrics)


def test_several_rewards_add_up_with_their_weights(train, workspace):
    (workspace / "extra.py").write_text("def length(response):\n    return float(len(response))\n")
    flags = ["--reward", "my_reward.py:score", "extra.py:length", "--reward.length.weight", "0.5"]
    for line in steps_of(train("run", *flags)):
        m = line["metrics"]
        assert m["reward/mean"] == pytest.approx(
            m["reward/score"] + 0.5 * m["reward/length"], abs=1e-5
        )


def test_evaluation_reports_pass_at_k_per_set_and_temperature(train, workspace):
    (workspace / "held.jsonl").write_text(json.dumps({"prompt": "1=", "answer": "1"}) + "\n")
    flags = [
        "--eval.data",
        "easy=held.jsonl",
        "--eval.n_samples",
        "4",
        "--eval.temperatures",
        "0",
        "1",
    ]
    values = next(line["eval"] for line in train("run", *flags) if "eval" in line)

    assert {"eval/easy/T0/pass@1", "eval/easy/T1/pass@1", "eval/easy/T1/pass@4"} <= values.keys()


def test_the_best_checkpoint_is_kept_beyond_retention(train, workspace):
    flags = [
        "--eval.fraction",
        "0.2",
        "--eval.every",
        "1",
        "--checkpoint.every",
        "1",
        "--checkpoint.keep",
        "1",
    ]
    flags += [
        "--checkpoint.best_metric",
        "eval/mine/T0/response_length",
        "--checkpoint.best_mode",
        "max",
    ]
    metrics = train("run", *flags, "--steps", "4")

    lengths = {
        line["step"]: line["eval"]["eval/mine/T0/response_length"]
        for line in metrics
        if "eval" in line
    }
    best = max((step for step in lengths if step), key=lambda step: (lengths[step], -step))
    kept = sorted(int(p.name[5:]) for p in (workspace / "run" / "checkpoints").glob("step-*"))
    assert kept == sorted({best, 4})


def test_a_third_party_estimator_in_a_file(train, workspace):
    (workspace / "mine.py").write_text(
        "import torch\n"
        "from rlhf_core.contracts import Advantages\n"
        "def centered(batch):\n"
        "    rewards = batch.rewards - batch.rewards.mean()\n"
        "    return Advantages(advantages=torch.where(batch.action_mask, rewards[:, None], 0.0))\n"
    )

    assert len(steps_of(train("run", "--estimator", "mine.py:centered"))) == 2


def test_the_two_turn_environment_puts_rewards_on_their_turn(train, workspace):
    flags = ["--executor", "multi_turn", "--env", "echo_after_hint", "--rollout.max_length", "64"]
    metrics = steps_of(train("run", *flags))

    assert metrics[0]["metrics"]["rollout/turns"] > 1
