"""``rlhf prm`` as a user runs it: its numbers are those of plain Transformers models, and its model can be served."""

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cases import one_in
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlhf_cli.main import main
from rlhf_core.contracts import RewardRequest
from rlhf_core.plugins import load
from rlhf_plugin_reward_model.config import StepModelOptions
from rlhf_plugin_reward_model.steps import StepScorer
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import (
    QUIET,
    check_that_killed_runs_resume,
    records,
    seen_and_new,
)

pytestmark = pytest.mark.slow


def solution(a, b):
    """Steps that count up from ``a``; the one at ``b`` is wrong, and every later one too."""
    steps = [str(a + place + (place >= b)) for place in range(3)]
    return {
        "prompt": f"from {a}:\n",
        "completions": steps,
        "labels": [place < b for place in range(3)],
    }


SOLUTIONS = [solution(a, b) for a in range(6) for b in range(4)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model`` and ``steps.jsonl`` (prompt, completions, labels)."""
    write_tiny_model(
        tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2, initializer_range=0.1
    )
    write("steps.jsonl", SOLUTIONS, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, rows, folder=Path()):
    (folder / name).write_text("\n".join(map(json.dumps, rows)) + "\n")


def prm(*words):
    return main(["prm", "--model", "model", "--data", "steps.jsonl", *QUIET, *words])


def plain_scores(model, tokenizer, row):
    """Score behind each step, of a prefix that ends there, without packing."""
    text, scores = row["prompt"], []
    for step in row["completions"]:
        text += step + "\n"
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        scores.append((hidden[0, -1] * model.score.weight[0]).sum())
    return torch.stack(scores)


def test_losses_and_gradients_of_two_updates_are_those_of_plain_models(folder):
    start = ["--optim", "sgd", "--actor.warmup_ratio", "0", "--actor.max_norm", "none"]
    assert prm(*start, "--actor.sgd.lr", "1e-30", "--steps", "1", "--output", "start") == 0
    code = prm(
        *(*start, "--actor.sgd.lr", "1.0", "--steps", "2", "--output", "run"),
        *("--train.batch_size", "24", "--train.max_tokens_per_micro_batch", "50"),
        *("--data.max_length", "30"),
    )

    assert code == 0
    tokenizer = AutoTokenizer.from_pretrained("model")
    model = AutoModelForSequenceClassification.from_pretrained("start/model").eval()
    found = records(Path("run"), "metrics")
    for step in range(2):
        scores = torch.cat([plain_scores(model, tokenizer, row) for row in SOLUTIONS])
        labels = torch.tensor([float(label) for row in SOLUTIONS for label in row["labels"]])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
        assert found[step]["loss/steps"] == pytest.approx(loss.item(), abs=1e-6)
        right = ((scores > 0) == (labels > 0.5)).float().mean()
        assert found[step]["steps/accuracy"] == pytest.approx(right.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= weight.grad
    after = dict(AutoModelForSequenceClassification.from_pretrained("run/model").named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(after[name], weight, atol=2e-6, rtol=1e-5)


def test_bad_steps_are_learned_and_the_exported_model_is_a_reward(folder):
    code = prm(
        *(*seen_and_new("steps.jsonl"), "--output", "run", "--train.epochs", "30"),
        *("--train.batch_size", "8", "--actor.adam.lr", "0.003", "--runtime.local.threads", "1"),
    )

    assert code == 0
    first, last = records(Path("run"), "eval")
    assert first["eval/seen/loss"] == pytest.approx(0.6931, abs=0.1)
    assert last["eval/seen/accuracy"] >= 0.95
    assert last["eval/seen/label"] == pytest.approx(0.5)
    config = json.loads(Path("run/model/config.json").read_text())
    assert config["step_separator"] == "\n"
    plain = AutoModelForSequenceClassification.from_pretrained("run/model").eval()
    tokenizer = AutoTokenizer.from_pretrained("run/model")
    for reduce, how in (("min", min), ("product", math.prod), ("last", lambda each: each[-1])):
        with torch.no_grad():
            expected = [
                how(plain_scores(plain, tokenizer, row).sigmoid().tolist()) for row in SOLUTIONS
            ]
        assert rewards_of("run/model", SOLUTIONS, reduce) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("adapter", "folders"), [("lora", ("model", "model/adapter")), ("qlora", ("model",))]
)
def test_an_adapter_learns_and_what_is_exported_scores_as_it_was_trained(folder, adapter, folders):
    # bitsandbytes unpacks widths that are multiples of 64 rightly on every processor.
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2}
    write_tiny_model(folder / "model", **shape, initializer_range=0.1)
    words = ("--actor.adapter", adapter, "--actor.adam.lr", "0.01", "--train.epochs", "3")
    assert prm(*words, "--train.batch_size", "8", *seen_and_new("steps.jsonl")) == 0

    first, *_, last = records(Path("runs/prm"), "eval")
    assert last["eval/seen/loss"] < first["eval/seen/loss"]
    labels = [label for row in SOLUTIONS for label in row["labels"]]
    for exported in folders:
        scorer = StepScorer(StepModelOptions(path=f"runs/prm/{exported}"))
        texts = [scorer.text(row["prompt"], "\n".join(row["completions"])) for row in SOLUTIONS]
        good = [one for each in scorer.probabilities(texts) for one in each]
        losses = [-math.log(p if label else 1 - p) for p, label in zip(good, labels, strict=True)]
        assert np.mean(losses) == pytest.approx(last["eval/seen/loss"], abs=1e-5)


def rewards_of(path, rows, reduce):
    """Rewards by the component ``process_reward_model``, of responses whose last step has nothing behind it."""
    registered = load("").get("rlhf_rewards", "process_reward_model")
    reward = registered.build(registered.validate({"path": path, "reduce": reduce}))
    requests = [
        RewardRequest(
            uid="0.0.0.0",
            row=row,
            prompt=row["prompt"],
            response="\n".join(row["completions"]),
            token_ids=(),
            action_mask=(),
            turns=(),
            truncated=False,
        )
        for row in rows
    ]
    return [result.reward for result in asyncio.run(reward.score(requests))]


@pytest.mark.slow
@pytest.mark.parametrize("phase", one_in(3, ["train", "save", "export"], first=1))
def test_a_run_that_was_killed_goes_on_to_the_bit(folder, phase):
    words = [
        *("prm", "--model", "model", "--data", "steps.jsonl", *QUIET, "--train.batch_size", "7"),
        *("--train.epochs", "2", "--checkpoint.every", "2", "--runtime.local.threads", "1"),
        *(*seen_and_new("steps.jsonl"), "--eval.every", "3", "--actor.adam.lr", "0.01"),
    ]
    steps = {"train": (1, 2, 5, 8), "save": (2, 8), "export": (8,)}[phase]
    check_that_killed_runs_resume(folder, words, phase, steps)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.labels_key", "marks"], "steps.jsonl"),
        (["--data.separator", ""], "--data.separator"),
        (["--ranking.loss", "sigmoid"], "there is no such option"),
        (
            ["--checkpoint.best_metric", "eval/seen/accuracy"],
            "there is no evaluation to take it from",
        ),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(folder, capfd, words, message):
    (folder / "model" / "model.safetensors").unlink()

    assert prm(*words, "--output", "run") == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [True, False]}, "expected a label for each of the 3 steps"),
        ({"labels": [1, 2, 0]}, "label 2: expected true, false or a number from 0 to 1"),
        ({"completions": []}, "expected a label for each of the 0 steps"),
    ],
)
def test_bad_rows_are_named(folder, capfd, changes, message):
    write("steps.jsonl", [*SOLUTIONS, SOLUTIONS[0] | changes])

    assert prm("--output", "run") == 2
    said = capfd.readouterr().err
    assert "steps.jsonl:25" in said
    assert message in said
