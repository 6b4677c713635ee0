"""``rlhf sft`` as a user runs it: its numbers are those of a plain Transformers model, and it goes on after a kill."""

import json
import math
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

CONVERSATIONS = [
    [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "and two?"},
        {"role": "assistant", "content": "22"},
    ],
    [{"role": "user", "content": "three?"}, {"role": "assistant", "content": "333"}],
    [
        {"role": "system", "content": "count"},
        {"role": "user", "content": "four?"},
        {"role": "assistant", "content": "4444"},
    ],
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model``, ``sums.jsonl`` (prompt, response) and ``chats.jsonl`` (messages)."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    sums = [{"prompt": f"{a}+{b}=", "response": f"{a + b:02d}"} for a in range(5) for b in range(5)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, sums)) + "\n")
    chats = [json.dumps({"messages": messages}) for messages in CONVERSATIONS]
    (tmp_path / "chats.jsonl").write_text("\n".join(chats) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sft(*words):
    return main(["sft", "--model", "model", *QUIET, *words])


def steps(output):
    return records(Path(output), "metrics")


def naive_loss(model, chats):
    """Mean over the assistant's tokens of the negative log-likelihood, a conversation at a time, without packing.

    The spans are found by hand: the tiny template writes ``<|role|>content`` and an end token behind each message.
    """
    tokenizer = AutoTokenizer.from_pretrained("model")
    losses = []
    for messages in chats:
        ids, learned = [], []
        for number, message in enumerate(messages):
            shown = tokenizer.apply_chat_template(
                messages[: number + 1], tokenize=True, return_dict=False
            )
            new = shown[len(ids) :]
            if message["role"] == "assistant":
                asked = tokenizer.apply_chat_template(
                    messages[:number], tokenize=True, add_generation_prompt=True, return_dict=False
                )
                lead = len(asked) - len(ids)
                body = tokenizer.encode(message["content"], add_special_tokens=False)
                learned += [False] * lead + [True] * (len(body) + 1)
                learned += [False] * (len(new) - lead - len(body) - 1)
            else:
                learned += [False] * len(new)
            ids = shown
        ids, learned = torch.tensor(ids), torch.tensor(learned)
        logprobs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        picked = logprobs[:-1].gather(1, ids[1:, None])[:, 0]
        losses.append(-picked[learned[1:]])
    return torch.cat(losses).mean()


def test_loss_and_gradient_of_packed_conversations_are_those_of_a_plain_model(folder):
    before = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    code = sft(
        *("--data", "chats.jsonl", "--data.messages_key", "messages", "--output", "run"),
        *("--steps", "1", "--optim", "sgd", "--actor.sgd.lr", "1.0", "--actor.max_norm", "none"),
        *("--actor.warmup_ratio", "0"),
    )

    assert code == 0
    loss = naive_loss(before, CONVERSATIONS)
    loss.backward()
    assert steps("run")[0]["sft/nll"] == pytest.approx(loss.item(), abs=1e-6)
    after = dict(AutoModelForCausalLM.from_pretrained("run/model").named_parameters())
    for name, weight in before.named_parameters():
        moved = weight.detach() - after[name].detach()
        torch.testing.assert_close(moved, weight.grad, atol=1e-6, rtol=1e-5)


def test_smoothed_labels_are_those_of_a_plain_model(folder):
    before = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    code = sft(
        *("--data", "sums.jsonl", "--data.max_samples", "5", "--output", "run", "--steps", "1"),
        *("--optim", "sgd", "--actor.sgd.lr", "1.0", "--actor.max_norm", "none"),
        *("--actor.warmup_ratio", "0", "--train.label_smoothing", "0.3"),
    )

    assert code == 0
    tokenizer, losses = AutoTokenizer.from_pretrained("model"), []
    for b in range(5):
        asked = tokenizer.encode(f"0+{b}=", add_special_tokens=False)
        said = [*tokenizer.encode(f"{b:02d}", add_special_tokens=False), tokenizer.eos_token_id]
        logits = before(input_ids=torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1]
        losses.append((logits, torch.tensor(said)))
    logits, labels = (torch.cat(part) for part in zip(*losses, strict=True))
    torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.3).backward()
    after = dict(AutoModelForCausalLM.from_pretrained("run/model").named_parameters())
    for name, weight in before.named_parameters():
        moved = weight.detach() - after[name].detach()
        torch.testing.assert_close(moved, weight.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_it_learns_answers_and_evaluates_them(folder):
    code = sft(
        *("--data", "sums.jsonl", *seen_and_new("sums.jsonl"), "--output", "run"),
        *("--train.epochs", "150", "--train.batch_size", "25", "--runtime.local.threads", "1"),
        *("--actor.adam.lr", "0.01", "--actor.lr_schedule", "cosine"),
    )

    assert code == 0
    first, last = records(Path("run"), "eval")
    assert first["eval/seen/nll"] > 3.0
    assert last["eval/seen/nll"] < 0.05
    assert last["eval/seen/token_accuracy"] == 1.0 > first["eval/seen/token_accuracy"]
    assert last["eval/seen/perplexity"] == pytest.approx(math.exp(last["eval/seen/nll"]))
    tokenizer = AutoTokenizer.from_pretrained("run/model")
    model = AutoModelForCausalLM.from_pretrained("run/model")
    asked = tokenizer("3+4=", return_tensors="pt", add_special_tokens=False)["input_ids"]
    said = model.generate(asked, max_new_tokens=3, do_sample=False)[0, asked.shape[1] :]
    assert tokenizer.decode(said) == "07" + tokenizer.eos_token


def test_epochs_count_every_row(folder):
    assert sft("--data", "sums.jsonl", "--output", "run", "--train.batch_size", "8") == 0

    found = steps("run")
    assert len(found) == 4  # 25 rows
    assert found[-1]["train/epoch"] == 1.0
    # Each row is its prompt of 4 tokens, 2 digits and the end of the sequence.
    assert [step["train/tokens"] for step in found] == [7 * 8, 7 * 8, 7 * 8, 7]


def test_sets_are_mixed_with_shares_and_a_second_start_has_the_same_numbers(folder, caplog):
    """Of 25 rows and 3 longer ones an epoch has three of each, in the first start and in that from the token cache."""
    long = [{"prompt": f"{a}+{a}+{a}+{a}=", "response": f"{4 * a:02d}"} for a in range(3)]
    (folder / "long.jsonl").write_text("\n".join(map(json.dumps, long)) + "\n")
    words = ["--data", "sums.jsonl", "long.jsonl", "--data.probabilities", "0.5", "0.5"]
    words += ["--train.batch_size", "6", "--data.cache", "cache"]

    for output in ("first", "second"):
        assert sft(*words, "--output", output) == 0

    assert [step["train/tokens"] for step in steps("first")] == [3 * 7 + 3 * 11]
    assert len(list((folder / "cache").iterdir())) == 1
    assert steps("first")[0]["sft/nll"] == steps("second")[0]["sft/nll"]
    assert (folder / "first/model/model.safetensors").read_bytes() == (
        folder / "second/model/model.safetensors"
    ).read_bytes()


def test_a_share_of_the_rows_is_held_out_and_evaluated_by_name(folder):
    code = sft("--data", "sums.jsonl", "--eval.fraction", "0.2", "--output", "run", "--steps", "1")

    assert code == 0
    first, last = records(Path("run"), "eval")
    assert first["eval/sums/nll"] == first["eval/nll"] != last["eval/nll"]
    trained = steps("run")[0]["train/tokens"] // 7
    assert 15 <= trained <= 24


@pytest.mark.parametrize("words", [["--eval.data", "sums.jsonl"], ["--eval.data", "a=sums.jsonl"]])
def test_a_run_that_trains_on_all_held_out_rows_is_refused(folder, capfd, words):
    (folder / "model" / "model.safetensors").unlink()

    assert sft("--data", "sums.jsonl", *words, "--output", "run") == 2
    said = capfd.readouterr().err
    assert "all are training rows too, by what the model reads (25 of 25 of" in said
    assert "--eval.fraction 0.1" in said


@pytest.mark.slow
@pytest.mark.parametrize("phase", one_in(2, ["train", "save", "export"]))
def test_a_run_that_was_killed_goes_on_to_the_bit(folder, phase):
    words = [
        *("sft", "--model", "model", "--data", "sums.jsonl", *QUIET, "--train.batch_size", "8"),
        *("--train.epochs", "2", "--checkpoint.every", "2", "--actor.ema", "0.9"),
        *(*seen_and_new("sums.jsonl"), "--eval.every", "3", "--runtime.local.threads", "1"),
    ]
    steps = {"train": range(1, 9), "save": range(2, 9, 2), "export": [8]}[phase]
    check_that_killed_runs_resume(folder, words, phase, steps)


def test_sigterm_saves_and_the_message_names_the_command(folder, capfd):
    words = ["sft", "--model", "model", "--data", "sums.jsonl", "--output", "run"]

    assert main([*words, "--steps", "3", "--train.batch_size", "8"]) == 0
    said = capfd.readouterr().out
    assert "loss" in said
    assert "rlhf show run" in said
    assert "Repeat it: rlhf sft -c THIS_FILE" in (folder / "run/config.toml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--data: expected data files; got none"),
        (["--data", "gone.jsonl"], "--data gone.jsonl: there is no such file"),
        (["--data", "chats.jsonl", "--data.form", "response"], "chats.jsonl:1: "),
        (["--data", "sums.jsonl", "--data.max_length", "3"], "sums.jsonl"),
        (["--data", "sums.jsonl", "--rollout.batch_size", "3"], "there is no such option"),
        (
            [
                "--data",
                "sums.jsonl",
                "--data.max_length",
                "99",
                "--train.max_tokens_per_micro_batch",
                "9",
            ],
            "a sequence has to fit into one pass",
        ),
        (
            ["--data", "sums.jsonl", "--checkpoint.best_metric", "eval/seen/nll"],
            "there is no evaluation to take it from",
        ),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(folder, capfd, words, message):
    (folder / "model" / "model.safetensors").unlink()

    assert sft(*words, "--output", "run") == 2
    assert message in capfd.readouterr().err


def test_help_check_and_dry_run(folder, capfd):
    assert main(["sft", "--help"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("Usage: rlhf sft [-c FILE.toml]")
    assert "--data.messages_key" in text
    assert sft("--data", "sums.jsonl", "--check") == 0
    assert "The configuration is valid." in capfd.readouterr().out
    assert sft("--data", "sums.jsonl", "--dry-run") == 0
    assert "supervised" not in capfd.readouterr().err
