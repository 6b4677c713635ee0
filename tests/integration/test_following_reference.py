"""Runs whose reference follows the policy, as a user starts them: their numbers, a kill, and what is refused."""

import json
import os
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import (
    QUIET,
    check_that_killed_runs_resume,
    how_to_resume,
    metrics_without_times,
    records,
    seen_and_new,
    train_in_a_fork,
    weights_digest,
    write_workspace,
)
from .test_dpo import PAIRS, naive_loss
from .test_kto import ANSWERS
from .test_kto import naive_loss as naive_kto

pytestmark = pytest.mark.slow

# One update of a step, so that the policy of a step is that of its first update.
ONE_UPDATE = ("--train.batch_size", "none", "--train.inner_epochs", "1")
RESET = ("--ref.sync_every", "2")
ADAPTER = ("--actor.adapter", "lora", "--actor.lora.rank", "4")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return write_workspace(tmp_path_factory.mktemp("following"))


def penalties(run):
    return [line["kl/ref"] for line in records(run, "metrics")]


@pytest.mark.parametrize("adapter", [(), ADAPTER], ids=["whole", "adapter"])
def test_a_reset_reference_is_the_policy_of_that_step(workspace, adapter):
    """After steps 2 and 4 policy and reference are equal, so the next step has no KL, to the bit."""
    output = f"reset-{len(adapter)}"

    code = train_in_a_fork(workspace, output, *ONE_UPDATE, *RESET, *adapter, "--steps", "5")

    assert code == 0, (workspace / f"{output}.log").read_text()
    found = penalties(workspace / output)
    assert [kl == 0.0 for kl in found] == [True, False, True, False, True]


def test_before_its_first_move_the_reference_is_the_model_at_the_start(workspace):
    """The same numbers as with a second model, to the bit, also while an engine sleeps."""
    late = ("--ref.sync_every", "9", "--ref.sync_alpha", "0.5")
    ways = {"fixed": (), "late": late, "asleep": (*late, "--runtime.sleep", "always")}

    for output, words in ways.items():
        code = train_in_a_fork(workspace, output, "--steps", "4", *words)
        assert code == 0, (workspace / f"{output}.log").read_text()

    fixed, moved, asleep = (metrics_without_times(workspace / output) for output in ways)
    assert moved == fixed
    assert asleep == fixed


MIXED = ("--ref.sync_every", "2", "--ref.sync_alpha", "0.25")


def test_a_killed_run_goes_on_with_its_reference_to_the_bit(workspace):
    assert train_in_a_fork(workspace, "straight", *MIXED, "--steps", "6") == 0
    for point in ("train:5", "save:6"):
        output = f"killed-{point.replace(':', '-')}"
        killed = train_in_a_fork(workspace, output, *MIXED, "--steps", "6", fault=point)
        assert os.WIFSIGNALED(killed), (workspace / f"{output}.log").read_text()
        assert os.WTERMSIG(killed) == signal.SIGKILL
        again = ("--resume", how_to_resume(workspace / output))

        resumed = train_in_a_fork(workspace, output, *MIXED, "--steps", "6", *again)

        assert resumed == 0, (workspace / f"{output}.log").read_text()
        run = workspace / output
        assert metrics_without_times(run) == metrics_without_times(workspace / "straight")
        assert weights_digest(run) == weights_digest(workspace / "straight")
    assert list((workspace / "straight" / "checkpoints").rglob("reference.safetensors"))


def test_a_run_that_had_none_goes_on_with_a_reference_from_the_start(workspace):
    """The reference that begins to follow at a resume is the model at the start until it moves."""
    for output in ("never", "begins"):
        assert train_in_a_fork(workspace, output, "--steps", "3") == 0

    codes = [
        train_in_a_fork(workspace, output, "--steps", "5", "--resume", "auto", *words)
        for output, words in (("never", ()), ("begins", ("--ref.sync_every", "4")))
    ]

    assert codes == [0, 0], (workspace / "begins.log").read_text()
    never, begins = (penalties(workspace / output) for output in ("never", "begins"))
    assert begins[:4] == never[:4]
    assert begins[4] != never[4]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with a model, pairs and judged answers."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    for name, rows in (("pairs", PAIRS), ("answers", ANSWERS)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


LOSSES = {
    "dpo": ("pairs", ("--preference.dpo.beta", "0.3"), lambda *m: naive_loss(*m, PAIRS, 0.3)),
    "kto": (
        "answers",
        (
            *("--preference.kto.beta", "0.3", "--preference.kto.desirable_weight", "2.0"),
            *("--preference.kto.undesirable_weight", "0.2"),
        ),
        lambda *models: naive_kto(*models)[0],
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("every", "alpha"), [(1, 0.25), (2, 1.0)])
def test_losses_from_preferences_are_those_of_plain_models(folder, loss, every, alpha):
    rows, options, naive = LOSSES[loss]
    words = [
        *("dpo", "--model", "model", "--data", f"{rows}.jsonl", "--preference.loss", loss),
        *(*options, *QUIET, "--steps", "4", "--output", "run", "--train.batch_size", "100"),
        *("--optim", "sgd", "--actor.sgd.lr", "0.5", "--actor.max_norm", "none"),
        *("--actor.warmup_ratio", "0", "--train.max_tokens_per_micro_batch", "40"),
        *("--data.max_length", "40", *seen_and_new(f"{rows}.jsonl")),
        *("--ref.sync_every", str(every), "--ref.sync_alpha", str(alpha)),
    ]

    assert main(words) == 0

    model, reference = (
        AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32) for _ in range(2)
    )
    found = records(folder / "run", "metrics")
    for step in range(4):
        loss_value = naive(model, reference)
        model.zero_grad()
        loss_value.backward()
        assert found[step]["loss/preference"] == pytest.approx(loss_value.item(), abs=2e-6)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.5 * weight.grad
            if (step + 1) % every == 0:
                for ours, theirs in zip(reference.parameters(), model.parameters(), strict=True):
                    ours.copy_(alpha * theirs + (1 - alpha) * ours)
    if loss == "kto":
        return  # among the held-out rows its answers meet other prompts
    evaluated = records(folder / "run", "eval")[-1]["eval/seen/loss"]
    assert evaluated == pytest.approx(naive(model, reference).item(), abs=2e-6)


@pytest.mark.parametrize("adapter", [(), ADAPTER], ids=["whole", "adapter"])
def test_preferences_that_were_killed_go_on_with_their_reference(folder, adapter):
    words = [
        *("dpo", "--model", "model", "--data", "pairs.jsonl", *QUIET, "--train.batch_size", "5"),
        *("--train.epochs", "2", "--checkpoint.every", "2", "--runtime.local.threads", "1"),
        *(*seen_and_new("pairs.jsonl"), "--eval.every", "3", "--actor.adam.lr", "0.01"),
        *("--ref.sync_every", "3", *adapter),
    ]
    check_that_killed_runs_resume(folder, words, "train", (5, 8))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ref.sync_every", "2", "--preference.loss", "simpo"], "simpo looks at no reference"),
        (["--ref.sync_alpha", "0.5"], "Set --ref.sync_every too"),
        (["--ref.sync_every", "2", "--ref.sync_alpha", "0.5", *ADAPTER], "Set --ref.sync_alpha 1"),
        (["--ref.path", "model"], "there is no such option"),
    ],
)
def test_what_cannot_follow_is_refused_before_a_model_is_read(folder, capsys, words, message):
    assert main(["dpo", "--model", "model", "--data", "pairs.jsonl", *QUIET, *words]) != 0

    assert message in capsys.readouterr().err
