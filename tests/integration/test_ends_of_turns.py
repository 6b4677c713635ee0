"""A base model whose files end texts at another token than its chat template ends turns: both are exported and stop."""

import json

import pytest
from tests.released_templates import released_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.main import main
from rlhf_testing.tiny import tiny_config

from .forked_runs import QUIET

pytestmark = pytest.mark.slow

CHATS = [
    [{"role": "user", "content": f"What is {a} + 2?"}, {"role": "assistant", "content": "It is 4."}]
    for a in range(4)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with a base model as Qwen2.5's: ends at ``<|endoftext|>``, and has ChatML's template."""
    tokenizer = released_tokenizer("qwen2_5")
    config = tiny_config(
        "qwen3",
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        initializer_range=0.2,
    )
    config.eos_token_id = tokenizer.eos_token_id
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    rows = [json.dumps({"messages": chat}) for chat in CHATS]
    (tmp_path / "chats.jsonl").write_text("\n".join(rows) + "\n")
    texts = [json.dumps({"text": "What is 2 + 2? It is 4."})] * 4
    (tmp_path / "texts.jsonl").write_text("\n".join(texts) + "\n")
    pairs = [
        json.dumps({"chosen": chat, "rejected": [chat[0], {**chat[1], "content": "No."}]})
        for chat in CHATS
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(pairs) + "\n")
    prompts = [json.dumps({"prompt": chat[:1], "answer": "4"}) for chat in CHATS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(prompts) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def ends_of(tokenizer):
    return sorted(tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"]))


def test_fine_tuning_on_chats_exports_both_ends_and_the_policy_stops(folder, capfd):
    words = ["--data.messages_key", "messages", "--train.batch_size", "4", "--steps", "60"]
    rate = ["--actor.adam.lr", "0.02", "--actor.warmup_ratio", "0"]

    assert (
        main(
            [
                "sft",
                "--model",
                "base",
                "--data",
                "chats.jsonl",
                *QUIET,
                "--output",
                "run",
                *words,
                *rate,
            ]
        )
        == 0
    )

    exported = folder / "run/model"
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert read(exported / "generation_config.json")["eos_token_id"] == ends_of(tokenizer)
    assert tokenizer.eos_token == "<|im_end|>"
    log = (folder / "run/run.log").read_text()
    assert "<|im_end|>" in log
    assert "the chat template's" in log
    capfd.readouterr()

    words = ["--data", "prompts.jsonl", "--output", "made", "--rollout.temperature", "0"]
    assert (
        main(["generate", "--model", str(exported), *words, "--rollout.max_new_tokens", "40"]) == 0
    )

    lines = (folder / "made/completions.jsonl").read_text().splitlines()
    stops = [json.loads(line)["completions"][0]["stop"] for line in lines]
    assert stops == ["eos"] * len(CHATS)
    assert "a turn ends at" in capfd.readouterr().err


def test_plain_texts_leave_the_tokenizer_as_it_was(folder):
    words = ["--data.text_key", "text", "--train.batch_size", "4", "--steps", "1"]

    assert (
        main(["sft", "--model", "base", "--data", "texts.jsonl", *QUIET, "--output", "run", *words])
        == 0
    )

    exported = folder / "run/model"
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert tokenizer.eos_token == "<|endoftext|>"
    assert read(exported / "generation_config.json")["eos_token_id"] == ends_of(tokenizer)


def test_a_reward_model_says_at_which_token_it_learned_its_scores(folder):
    words = ["--train.batch_size", "4", "--steps", "1", "--actor.adapter", "lora"]

    assert (
        main(["rm", "--model", "base", "--data", "pairs.jsonl", *QUIET, "--output", "run", *words])
        == 0
    )

    tokenizer = AutoTokenizer.from_pretrained("base")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for place in ("run/model", "run/model/adapter"):
        assert read(folder / place / "config.json")["score_token_ids"] == [end]


def test_a_run_from_the_base_stops_at_either_end_and_says_which(folder):
    words = ["--data", "prompts.jsonl", "--data.chat", "--reward", "exact_match", "--steps", "1"]
    sizes = ["--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"]

    assert main(["train", "--model", "base", *QUIET, "--output", "run", *words, *sizes]) == 0

    exported = folder / "run/model"
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert read(exported / "generation_config.json")["eos_token_id"] == ends_of(tokenizer)
    assert tokenizer.eos_token == "<|endoftext|>"
    assert "a turn ends at" in (folder / "run/run.log").read_text()
