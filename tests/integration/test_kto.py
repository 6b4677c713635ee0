"""``rlhf dpo`` with a loss on single answers: its numbers are those of plain Transformers models."""

import json
from pathlib import Path

import pytest
import torch
from tests.cases import one_in
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import (
    QUIET,
    check_that_killed_runs_resume,
    records,
    seen_and_new,
)

pytestmark = pytest.mark.slow

ANSWERS = [
    {"prompt": f"{a}+{b}=", "completion": answer, "label": label}
    for a in range(3)
    for b in range(3)
    for answer, label in ((f"{a + b:02d}", True), (f"{a + b + 1}?", a > 0))
][:-1]
"""More good answers than bad ones, so that the mean KL rises above 0, where it is clamped."""
BETA, GOOD, BAD = 0.3, 2.0, 0.2
SECTION = "preference.kto"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model`` and ``answers.jsonl`` (prompt, completion, label)."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    write("answers.jsonl", ANSWERS, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, rows, folder=Path()):
    (folder / name).write_text("\n".join(map(json.dumps, rows)) + "\n")


def kto(*words):
    start = ["dpo", "--preference.loss", "kto", "--model", "model", "--data", "answers.jsonl"]
    return main([*start, *QUIET, *words])


def answer_logprob(model, tokenizer, prompt, answer):
    """Log-prob of an answer and its end of sequence, without packing."""
    asked = tokenizer.encode(prompt, add_special_tokens=False)
    said = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    ids = torch.tensor([*asked, *said])
    logprobs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    return logprobs[len(asked) - 1 : -1].gather(1, ids[len(asked) :, None]).sum()


def log_ratios(model, reference, pairs):
    tokenizer = AutoTokenizer.from_pretrained("model")
    found = []
    for prompt, answer in pairs:
        with torch.no_grad():
            before = answer_logprob(reference, tokenizer, prompt, answer)
        found.append(answer_logprob(model, tokenizer, prompt, answer) - before)
    return torch.stack(found)


def naive_loss(model, reference):
    """Each answer against the mean log-ratio of answers beside other prompts: two rows further, the last ones first."""
    own = log_ratios(model, reference, [(row["prompt"], row["completion"]) for row in ANSWERS])
    others = [*ANSWERS[2:], *ANSWERS[:2]]
    with torch.no_grad():
        mixed = [
            (row["prompt"], other["completion"]) for row, other in zip(ANSWERS, others, strict=True)
        ]
        kl = log_ratios(model, reference, mixed).mean().clamp(min=0)
    losses = [
        GOOD * (1 - torch.sigmoid(BETA * (ratio - kl)))
        if row["label"]
        else BAD * (1 - torch.sigmoid(BETA * (kl - ratio)))
        for ratio, row in zip(own, ANSWERS, strict=True)
    ]
    return torch.stack(losses).mean(), kl


def test_losses_and_gradients_of_two_updates_are_those_of_plain_models(folder):
    code = kto(
        *("--steps", "2", "--output", "run", "--train.batch_size", "17", "--optim", "sgd"),
        *("--actor.sgd.lr", "0.5", "--actor.max_norm", "none", "--actor.warmup_ratio", "0"),
        *(f"--{SECTION}.beta", str(BETA), f"--{SECTION}.desirable_weight", str(GOOD)),
        *(f"--{SECTION}.undesirable_weight", str(BAD)),
        *("--train.max_tokens_per_micro_batch", "40", "--data.max_length", "40"),
    )

    assert code == 0
    reference = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    found = records(Path("run"), "metrics")
    for step in range(2):
        loss, kl = naive_loss(model, reference)
        model.zero_grad()
        loss.backward()
        assert found[step]["loss/preference"] == pytest.approx(loss.item(), abs=1e-6)
        assert found[step]["kto/reference_point"] == pytest.approx(kl.item(), abs=1e-5)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.5 * weight.grad
    assert found[1]["kto/reference_point"] > 0.1
    after = dict(AutoModelForCausalLM.from_pretrained("run/model").named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(after[name], weight, atol=5e-6, rtol=1e-4)


@pytest.mark.slow
def test_good_answers_become_likelier_than_bad_ones(folder):
    code = kto(
        *(*seen_and_new("answers.jsonl"), "--output", "run", "--train.epochs", "20"),
        *("--train.batch_size", "6", "--actor.adam.lr", "0.003", "--runtime.local.threads", "1"),
    )

    assert code == 0
    first, last = records(Path("run"), "eval")
    assert first["eval/seen/loss"] == pytest.approx(0.5, abs=1e-5)
    assert first["eval/seen/margin"] == pytest.approx(0.0, abs=1e-5)
    assert last["eval/seen/margin"] > 0.5
    assert last["eval/seen/loss"] < 0.45


@pytest.mark.slow
@pytest.mark.parametrize("phase", one_in(2, ["train", "save"], first=1))
def test_a_run_that_was_killed_goes_on_to_the_bit(folder, phase):
    words = [
        *("dpo", "--preference.loss", "kto", "--model", "model", "--data", "answers.jsonl"),
        *(*QUIET, "--train.batch_size", "5", "--train.epochs", "2", "--checkpoint.every", "2"),
        *("--runtime.local.threads", "1", *seen_and_new("answers.jsonl"), "--eval.every", "3"),
        *("--actor.adam.lr", "0.01"),
    ]
    steps = {"train": (2, 5), "save": (4, 8)}[phase]
    check_that_killed_runs_resume(folder, words, phase, steps)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.chosen_key", "best"], "would change nothing: kto reads single answers"),
        (["--data.margin_key", "by"], "no preference loss reads margins"),
        (["--preference.nll_coef", "0.1"], "expected 0 with kto"),
        (["--data.label_key", "good"], "answers.jsonl"),
        (
            ["--checkpoint.best_metric", "eval/accuracy", "--eval.data", "answers.jsonl"],
            "expected a metric that this run evaluates: eval/loss, eval/margin",
        ),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(folder, capfd, words, message):
    (folder / "model" / "model.safetensors").unlink()

    assert kto(*words, "--output", "run") == 2
    assert message in capfd.readouterr().err


def test_answers_to_a_single_prompt_are_refused(folder, capfd):
    write("answers.jsonl", ANSWERS[:2])

    assert kto("--output", "run") == 2
    assert "all 2 rows have the same prompt" in capfd.readouterr().err


def test_good_answers_alone_can_be_learned_from(folder):
    write("answers.jsonl", [row for row in ANSWERS if row["label"]])

    assert kto("--steps", "1", "--output", "run", *seen_and_new("answers.jsonl")) == 0
    first, _ = records(Path("run"), "eval")
    assert set(first) == {"eval/loss", "eval/seen/loss", "eval/new/loss"}
