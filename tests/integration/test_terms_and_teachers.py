"""Runs with further losses, a teacher, a targeted entropy: they do what they say and survive a resume."""

import json
import math

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def responses(workspace):
    rows = [{"prompt": f"{n:03d}=", "response": f"{n:03d}"} for n in range(0, 999, 53)]
    path = workspace / "good.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path.name)


def test_a_supervised_term_lowers_the_loss_of_the_given_responses(train, responses):
    flags = ["--algo.terms.use", "sft", "--supervised.data", responses]
    flags += ["--supervised.batch_size", "8", "--actor.adam.lr", "1e-2", "--steps", "12"]

    lines = train("run", *flags)

    losses = [line["metrics"]["loss/sft"] for line in lines if "metrics" in line]
    assert losses[0] > 4.0  # about log 99 for a model that knows nothing
    assert losses[-1] < 0.7 * losses[0]


def test_resuming_goes_on_with_the_responses_that_are_next(train, responses):
    flags = [
        "--algo.terms.use",
        "sft",
        "--supervised.data",
        responses,
        "--supervised.batch_size",
        "5",
    ]
    flags += ["--checkpoint.every", "1", "--train.inner_epochs", "2", "--seed", "3"]

    straight = train("straight", *flags, "--steps", "4")
    train("cut", *flags, "--steps", "2")
    resumed = train("cut", *flags, "--steps", "4", "--resume", "auto")

    def losses(lines):
        return [line["metrics"]["loss/sft"] for line in lines if "metrics" in line]

    assert losses(resumed) == losses(straight)


@pytest.mark.slow
@pytest.mark.parametrize("divergence", ["sampled", "top_k"])
def test_distillation_brings_the_policy_to_its_teacher(train, teacher, divergence):
    flags = ["--loss", "distill", "--algo.teacher.path", str(teacher), "--actor.adam.lr", "2e-2"]
    flags += ["--algo.loss.distill.divergence", divergence, "--steps", "120"]
    if divergence == "top_k":
        flags += ["--algo.teacher.top_k", "16"]

    lines = train("run", *flags)

    assert all(math.isfinite(x) for line in lines for x in line.get("metrics", {}).values())
    kl = [line["metrics"]["distill/kl"] for line in lines if "metrics" in line]
    assert sum(kl[-10:]) < 0.7 * sum(kl[:10])


@pytest.mark.slow
def test_a_targeted_entropy_is_approached_from_below(train):
    flags = ["--algo.loss.entropy_target", "4.3", "--algo.loss.entropy_step", "0.2"]
    flags += ["--actor.adam.lr", "5e-2", "--steps", "20", "--reward", "vary.py:vary"]

    lines = train("run", *flags)

    coefs = [line["metrics"]["policy/entropy_coef"] for line in lines if "metrics" in line]
    entropies = [line["metrics"]["policy/entropy"] for line in lines if "metrics" in line]
    below = [i for i, entropy in enumerate(entropies[:-1]) if entropy < 4.3]
    assert below, "the policy never fell below its target, so nothing was tested"
    assert all(coefs[i + 1] > 0 for i in below)
    assert coefs[0] == 0.0


def test_the_unbiased_gradient_of_a_kl_is_trained_with(train):
    flags = ["--algo.kl.coef", "0.1", "--algo.kl.mode", "loss", "--algo.kl.unbiased_gradient"]
    flags += ["--reward", "vary.py:vary"]

    lines = train("run", *flags, "--steps", "3", "--train.inner_epochs", "2")

    assert all(line["metrics"]["policy/grad_norm"] > 0 for line in lines)
    assert lines[-1]["metrics"]["loss/kl"] != 0.0
