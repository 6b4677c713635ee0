"""Low-rank factors beside a half-trained model learn the rest of the quickstart's task."""

import pytest

from rlhf_cli.main import main

from .conftest import require_learned
from .forked_runs import QUIET

WARM_UP = ("--steps", "25", "--train.batch_size", "64", "--actor.adam.lr", "5e-3")


@pytest.fixture
def half_trained(reverse_digits, tmp_path):
    """The quickstart's model after a few supervised updates: right for about a third of the strings."""
    data = ["--data", str(reverse_digits / "train.jsonl"), "--data.response_key", "answer"]
    words = ["sft", "--model", str(reverse_digits / "model"), *data, *WARM_UP, *QUIET]
    threads = ["--runtime.local.threads", "1", "--actor.warmup_ratio", "0"]
    assert main([*words, *threads, "--output", str(tmp_path / "warm")]) == 0
    return tmp_path / "warm" / "model"


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("adapter", ["lora", "dora", "qlora"])
def test_the_adapter_learns_from_a_warm_start(learn, half_trained, adapter):
    lines = learn(
        *("--steps", "300", "--actor.adapter", adapter, "--actor.adam.lr", "5e-3"),
        model=half_trained,
    )

    require_learned(adapter, lines, from_at_most=0.6)
