"""A tiny reward model in a folder, requests to score, and a server in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.deadlines import HANG_S
from tests.rounding import rounding

from rlhf_core.contracts import RewardRequest, Turn
from rlhf_core.plugins import load
from rlhf_testing.tiny import tiny_config, tiny_tokenizer

TOKEN = "the-tests-token"
CLOSE = {"abs": rounding(operations=430, magnitude=4.0)}
"""Of scores. On the way to one: in each of two layers norms (twice 16 terms), query or key (16), products (8), weights
and values of 25 positions, output (16) and MLP (16 and 64), then the last norm and the head (16 each). The head's 16
products have absolute values of 3.3 to 3.4 together. Probabilities, of slope 1/4, are closer."""


def write_reward_model(folder: Path, *, family: str = "qwen3", seed: int = 0, **config) -> Path:
    """A sequence classifier with random weights, large enough for scores to differ, and its tokenizer."""
    import torch
    from transformers import AutoModelForSequenceClassification

    tokenizer = tiny_tokenizer()
    shape = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
    settings = tiny_config(family, vocab_size=len(tokenizer), initializer_range=0.3, **shape)
    settings.num_labels = 1
    for name, value in config.items():
        setattr(settings, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(settings, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_adapter(base: Path, folder: Path, seed: int) -> Path:
    """A PEFT folder with a head, as ``rlhf rm --actor.adapter lora`` exports it, with factors that matter."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=1, dtype=torch.float32
        )
        wrapped = get_peft_model(
            model, LoraConfig(task_type="SEQ_CLS", r=4, target_modules="all-linear")
        )
        for name, weight in wrapped.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.1)
    wrapped.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def plain_score(folder: Path, token_ids) -> float:
    """What Transformers itself gives for one sequence."""
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(token_ids)])).logits.item()


def request_of(prompt: str, response: str, index: int = 0, *, eos: bool = True, **fields):
    """A finished sample of a policy that has the reward model's tokenizer."""
    tokenizer = tiny_tokenizer()
    start = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    end = tokenizer(response, add_special_tokens=False)["input_ids"] + [2] * eos
    request = RewardRequest(
        uid=f"0.{index}.0.0",
        row={"prompt": prompt},
        prompt=prompt,
        response=response,
        token_ids=(*start, *end),
        action_mask=(False,) * len(start) + (True,) * len(end),
        turns=(Turn(start=len(start), end=len(start) + len(end)),),
        truncated=not eos,
    )
    return replace(request, **fields)


@pytest.fixture(scope="session")
def make_reward_model():
    """``write_reward_model``."""
    return write_reward_model


@pytest.fixture(scope="session")
def plain():
    """``plain_score``."""
    return plain_score


@pytest.fixture(scope="session")
def sample():
    """``request_of``."""
    return request_of


@pytest.fixture(scope="session")
def reward_model(tmp_path_factory) -> Path:
    return write_reward_model(tmp_path_factory.mktemp("rm") / "model")


@pytest.fixture(scope="session")
def plugins():
    return load("")


@pytest.fixture(scope="session")
def reward(plugins):
    """``reward(name, **options)``: the component itself, as a worker builds it."""

    def build(name, **options):
        registered = plugins.get("rlhf_rewards", name)
        return registered.build(registered.validate(options))

    return build


@pytest.fixture(scope="session")
def results(reward):
    """``results(name, requests, **options)``: what the component returns."""

    def run(name, requests, **options):
        return asyncio.run(reward(name, **options).score(requests))

    return run


@pytest.fixture(scope="session")
def samples():
    """Six samples of different lengths."""
    texts = ["4", "42", "The answer is 42.", "x" * 100, "", "I do not know"]
    return [request_of("6 * 7 = ", text, index) for index, text in enumerate(texts)]


@dataclass
class Server:
    """``rlhf serve-rm`` in a process."""

    process: subprocess.Popen
    printed: list[str]

    @property
    def url(self) -> str:
        return next(line for line in self.printed if line.startswith("url:")).split()[1]


@contextmanager
def serving(*words: str, token: str | None = TOKEN):
    """Run the command until its url is printed; end it afterwards."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment.pop("RLHF_REWARD_TOKEN", None)
    if token is not None:
        environment["RLHF_REWARD_TOKEN"] = token
    process = subprocess.Popen(
        [sys.executable, "-m", "rlhf_cli", "serve-rm", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield Server(process, _first_lines(process))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=HANG_S)


def _first_lines(process: subprocess.Popen) -> list[str]:
    lines: list[str] = []
    give_up = time.monotonic() + HANG_S
    while time.monotonic() < give_up:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the server ended: {process.stderr.read()}")
        lines.append(line.strip())
        if line.startswith("token:"):
            return lines
    raise AssertionError(f"no url within {HANG_S} s: {lines}")


@pytest.fixture(scope="session")
def serve():
    """``serving``."""
    return serving


@pytest.fixture(scope="module")
def server(reward_model):
    """A server of the tiny model, for tests that leave it as it is."""
    with serving(str(reward_model), "--port", "0") as running:
        yield running
