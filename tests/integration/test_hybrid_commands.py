"""Every command that trains takes a model with gated linear attention, and its export loads in plain Transformers."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import QUIET

ANSWERS = [{"prompt": f"{n}=", "response": str(n)} for n in range(8)]
PAIRS = [{"prompt": f"{n}=", "chosen": str(n), "rejected": "?"} for n in range(8)]
STEPS = [{"prompt": f"{n}=", "completions": ["1", "2"], "labels": [True, False]} for n in range(8)]
LEARNED = ("--train.batch_size", "4")
ROLLOUTS = (
    *("--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "2"),
    *(
        "--rollout.max_new_tokens",
        "4",
        "--data.max_prompt_tokens",
        "8",
        "--reward",
        "reward.py:score",
    ),
)
TURNS = (
    *("--executor", "multi_turn", "--env", "echo_after_hint", "--rollout.max_length", "32"),
    *("--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "8"),
)
COMMANDS = {
    "train": (ANSWERS, ("train", *ROLLOUTS)),
    "train with a critic": (ANSWERS, ("train", *ROLLOUTS, "--estimator", "gae")),
    "train an adapter": (
        ANSWERS,
        ("train", *ROLLOUTS, "--actor.adapter", "lora", "--algo.kl.coef", "0.1"),
    ),
    "train by Muon": (ANSWERS, ("train", *ROLLOUTS, "--actor.optim", "muon")),
    "train in turns": (ANSWERS, ("train", *TURNS)),
    "sft": (ANSWERS, ("sft", *LEARNED)),
    "dpo": (PAIRS, ("dpo", *LEARNED)),
    "rm": (PAIRS, ("rm", *LEARNED)),
    "prm": (STEPS, ("prm", *LEARNED)),
    "distill": (ANSWERS, ("distill", *LEARNED, "--teacher.path", "teacher")),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_trains_and_exports_the_model(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, model in enumerate(("model", "teacher")):
        write_tiny_model(tmp_path / model, "qwen3_5", seed=seed)
    rows, words = COMMANDS[name]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "reward.py").write_text(
        "def score(token_ids):\n    return sum(token_ids) % 7 / 7\n"
    )
    options = ("--model", "model", "--data", "rows.jsonl", "--steps", "2", "--output", "run")

    assert main([*words, *options, *QUIET]) == 0

    if name.startswith(("train", "sft", "dpo", "distill")):
        exported = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
        before = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        ids = torch.arange(4, 12)[None]
        with torch.no_grad():
            moved = (exported(ids).logits - before(ids).logits).abs().max()
        assert 0.0 < float(moved) < 10.0
