"""Models of a run with more or fewer rows than the tokenizer has tokens, and with other tokenizers."""

import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from rlhf_cli.main import main
from rlhf_testing.tiny import ALPHABET, tiny_tokenizer, write_tiny_model

from .forked_runs import QUIET, records

pytestmark = pytest.mark.slow

TRAIN = [
    *("--data", "sums.jsonl", "--reward", "exact_match", "--steps", "1", "--output", "run"),
    *("--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "4"),
]
SIZE = 100
"""Tokens of the tiny tokenizer."""


def write_padded(folder, rows, seed=0):
    """A tiny model with further rows in embeddings and head, which it likes best."""
    write_tiny_model(folder, "llama", hidden_size=32, num_layers=1, num_heads=2, seed=seed)
    model = AutoModelForCausalLM.from_pretrained(folder)
    first = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[first:] *= 20.0
    model.save_pretrained(folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model`` of 120 rows, ``large`` of 128, and sums."""
    write_padded(tmp_path / "model", 120)
    write_padded(tmp_path / "large", 128, seed=1)
    sums = [
        {"prompt": f"{a}+{b}=", "answer": str(a + b), "response": str(a + b)}
        for a in range(3)
        for b in range(3)
    ]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, sums)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OTHERS = {
    "reference": ["--ref.path", "large", "--algo.kl.coef", "0.1"],
    "critic": ["--estimator", "gae", "--critic.path", "large"],
    "teacher": [
        *("--loss", "distill", "--algo.teacher.path", "large"),
        *("--algo.loss.distill.divergence", "top_k", "--algo.teacher.top_k", "16"),
    ],
}


@pytest.mark.parametrize("role", sorted(OTHERS))
def test_a_role_of_another_size_is_read_at_the_common_part(folder, role):
    assert main(["train", "--model", "model", *QUIET, *TRAIN, *OTHERS[role]]) == 0

    (metrics,) = records(folder / "run", "metrics")
    assert abs(metrics["mismatch/logprob_diff_mean"]) < 1e-4


@pytest.mark.parametrize("padding", ["false", "true"])
def test_padding_is_sampled_only_if_an_option_says_so(folder, padding):
    words = ["--data", "sums.jsonl", "--output", "made", "--rollout.max_new_tokens", "20"]
    words += ["--rollout.sample_padding", padding]

    assert main(["generate", "--model", "large", *words]) == 0

    lines = (folder / "made/completions.jsonl").read_text().splitlines()
    made = [one for line in lines for one in json.loads(line)["completions"]]
    # Each token of the tokenizer is a character, special ones aside; a row that no token has is none.
    shown = sum(len(one["text"]) for one in made) / sum(one["tokens"] for one in made)
    assert shown > 0.9 if padding == "false" else shown < 0.7


@pytest.mark.parametrize("direction", [("model", "large"), ("large", "model")])
def test_models_of_two_sizes_sample_the_padding_that_both_have(folder, direction):
    policy, other = direction
    words = ["--ref.path", other, "--algo.kl.coef", "0.1", "--rollout.sample_padding", "true"]

    assert main(["train", "--model", policy, *QUIET, *TRAIN, *words]) == 0

    (metrics,) = records(folder / "run", "metrics")
    assert abs(metrics["mismatch/logprob_diff_mean"]) < 1e-4


def write_reward_model(folder):
    config = AutoModelForCausalLM.from_pretrained("model").config
    config.num_labels = 1
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (OTHERS["reference"], "--ref.path large"),
        (OTHERS["critic"], "--critic.path large"),
        (OTHERS["teacher"], "--algo.teacher.path large"),
        (
            ["--reward", "reward_model", "--reward.reward_model.path", "large"],
            "the reward reward_model large",
        ),
    ],
    ids=[*sorted(OTHERS), "reward model"],
)
def test_another_tokenizer_is_refused_by_name_before_generation(folder, capfd, words, named):
    write_reward_model(folder / "large") if "reward_model" in words else None
    tiny_tokenizer(ALPHABET[::-1]).save_pretrained(folder / "large")
    data = TRAIN if "reward_model" not in words else [*TRAIN[:2], *TRAIN[4:]]

    assert main(["train", "--model", "model", *QUIET, *data, *words]) == 2

    said = capfd.readouterr().err
    assert f"{named}: expected a model with the run's tokenizer" in said
    assert "in the run, and" in said


@pytest.fixture
def more_tokens(folder):
    """The folder ``words``: a tokenizer with two tokens more than the model ``small`` has rows."""
    write_tiny_model(folder / "small", hidden_size=32, num_layers=1, num_heads=2)
    tokenizer = AutoTokenizer.from_pretrained(folder / "small")
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(folder / "words")
    return AutoModelForCausalLM.from_pretrained(folder / "small").config.vocab_size


SFT = ["--steps", "1", "--train.batch_size", "4", "--data", "sums.jsonl", "--output", "run"]


@pytest.mark.parametrize("command", ["train", "sft"])
def test_tokens_without_a_row_are_refused_or_get_one_that_is_exported(
    folder, capfd, more_tokens, command
):
    words = ["--model", "small", "--model.tokenizer", "words", *QUIET]
    words += TRAIN if command == "train" else SFT

    assert main([command, *words]) == 2
    said = capfd.readouterr().err
    assert (
        f"embeddings have {more_tokens} rows, and the tokenizer has {more_tokens + 2} tokens"
        in said
    )
    assert f"'<one>' ({more_tokens}). Set --model.resize_embeddings" in said

    assert main([command, *words, "--model.resize_embeddings", "true"]) == 0
    exported = AutoModelForCausalLM.from_pretrained(folder / "run/model")
    assert exported.config.vocab_size == exported.lm_head.weight.shape[0] == more_tokens + 2
    assert len(AutoTokenizer.from_pretrained(folder / "run/model")) == more_tokens + 2


def test_an_adapter_gets_no_rows(folder, capfd, more_tokens):
    words = ["--model", "small", "--model.tokenizer", "words", "--model.resize_embeddings", "true"]

    assert main(["sft", *words, *QUIET, *SFT, "--actor.adapter", "lora"]) == 2

    assert "without --actor.adapter first" in capfd.readouterr().err
