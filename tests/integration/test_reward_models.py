"""``rlhf train`` with a reward model beside it, and with the same model behind ``rlhf serve-rm``."""

import os
import subprocess
import sys

import pytest
from tests.deadlines import HANG_S
from tests.plugins.reward_model.conftest import write_adapter

from rlhf_cli.main import main
from rlhf_testing.tiny import tiny_config, tiny_tokenizer

pytestmark = pytest.mark.slow

TOKEN = "the-tests-token"


@pytest.fixture
def reward_model(workspace):
    """The folder ``rm``: a classifier with random weights and the policy's tokenizer."""
    import torch
    from transformers import AutoModelForSequenceClassification

    tokenizer = tiny_tokenizer()
    shape = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "initializer_range": 0.3}
    config = tiny_config("qwen3", vocab_size=len(tokenizer), **shape)
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    model.save_pretrained(workspace / "rm")
    tokenizer.save_pretrained(workspace / "rm")
    return workspace / "rm"


@pytest.fixture
def server_url(reward_model):
    pytest.importorskip("uvicorn")
    words = ["serve-rm", str(reward_model), "--port", "0", "--input", "ids"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlhf_cli", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RLHF_REWARD_TOKEN": TOKEN},
    )
    with process:
        lines = iter(process.stdout.readline, "")
        yield next(line.split()[1] for line in lines if line.startswith("url:"))
        process.terminate()
        assert process.wait(HANG_S) == 0


@pytest.mark.usefixtures("no_process_left")
def test_a_run_learns_the_same_from_a_model_beside_it_and_from_a_server(
    train, server_url, monkeypatch
):
    monkeypatch.setenv("RLHF_REWARD_TOKEN", TOKEN)

    beside = train("beside", "--reward", "reward_model", "--reward.reward_model.path", "rm")
    served = train(
        *("served", "--reward", "http", "--reward.http.urls", server_url),
        *("--reward.http.send_token_ids", "true"),
    )

    one, other = (
        [line["metrics"] for line in run if "metrics" in line] for run in (beside, served)
    )
    assert len(one) == len(other) == 2
    for first, second in zip(one, other, strict=True):
        score = first["reward/reward_model"]
        assert abs(score) > 1e-3
        assert second["reward/http"] == pytest.approx(score, abs=1e-6)
        # Advantages are whitened, so tiny differences of scores grow a little.
        assert second["loss/policy"] == pytest.approx(first["loss/policy"], abs=1e-4)


ON_POLICYS_BASE = [
    *("--actor.adapter", "lora", "--actor.lora.rank", "2", "--actor.adam.lr", "1e-3"),
    *("--reward", "reward_model", "--reward.reward_model.path", "adapter"),
]
"""A policy under an adapter, and a reward model that is another adapter of the same base."""
SHARED = ["--reward.reward_model.base", "shared"]
HERE = ["--reward.reward_model.isolate", "false"]


def test_a_run_learns_the_same_from_a_reward_model_on_the_policys_base(train, workspace):
    write_adapter(workspace / "model", workspace / "adapter", seed=1)

    own = train("own", *ON_POLICYS_BASE)
    shared = train("shared", *ON_POLICYS_BASE, *SHARED, *HERE)

    for first, second in zip(own, shared, strict=True):
        if "metrics" not in first:
            continue
        score = first["metrics"]["reward/reward_model"]
        assert abs(score) > 1e-3
        assert second["metrics"]["reward/reward_model"] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            [*SHARED],
            "isolate is true, but reward_model uses what the run's process holds in memory",
        ),
        ([*SHARED, *HERE, "--reward.reward_model.dtype", "bfloat16"], "base = shared, so dtype is"),
        ([*SHARED, *HERE, "--backend", "deepspeed"], "this training backend keeps to itself"),
    ],
)
def test_what_has_no_base_to_share_is_named_before_a_model_is_loaded(
    train, workspace, capsys, flags, message
):
    if "deepspeed" in flags:
        pytest.importorskip("deepspeed")
    write_adapter(workspace / "model", workspace / "adapter", seed=1)
    train("refused", *ON_POLICYS_BASE, *flags, code=2)
    assert message in capsys.readouterr().err
    assert not (workspace / "refused").exists()


@pytest.mark.usefixtures("workspace", "no_process_left")
def test_a_server_that_is_not_there_ends_the_run_with_its_address(capsys):
    common = ["--model", "model", "--data", "mine.jsonl", "--output", "run", "--steps", "1"]
    flags = ["--reward", "http", "--reward.http.urls", "http://127.0.0.1:9/get_reward"]

    code = main(["train", *common, *flags, "--reward.http.deadline_s", "1"])

    assert code == 1
    error = capsys.readouterr().err
    assert "no reward server can be reached (tried for deadline_s = 1)" in error
    assert "http://127.0.0.1:9/get_reward: Connection refused" in error
