"""A disk that is full for a rank alone: the run ends by name, or goes on without that checkpoint, as in one process."""

import json

import pytest

from rlhf_testing.tiny import write_tiny_model

pytestmark = [pytest.mark.scale, pytest.mark.slow]

REWARD = """
def score(response):
    return sum(map(ord, response)) % 7
"""
LOSS = """
import os
import resource
from rlhf_core.contracts import TokenLoss

CALLS = []
FULL_RANK, FULL_CALL = "HERE", NOW

def loss(batch):
    CALLS.append(None)
    if os.environ.get("RANK", "0") == FULL_RANK:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        soft = 4096 if len(CALLS) == FULL_CALL else hard
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    return TokenLoss(loss=-(batch.policy_logprobs - batch.old_logprobs).exp() * batch.advantages, metrics={})
"""
WORDS = (
    *("--model", "model", "--data", "mine.jsonl", "--reward", "vary.py:score"),
    *("--loss", "full_loss.py:loss", "--estimator", "reinforce", "--rollout.batch_size", "2"),
    *("--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "6"),
    *("--data.max_prompt_tokens", "8", "--log.progress", "off", "--log.tensorboard", "false"),
    *("--log.curve", "false", "--checkpoint.keep", "9", "--steps", "3"),
    *("--output", "run", "--runtime", "ray"),
)
EACH_STEP = ("--checkpoint.every", "1")
TWO_RANKS = ("--runtime.ray.ranks.policy", "2", "--runtime.ray.cpus_per.policy", "0.5")
TWO = (*TWO_RANKS, "--backend", "fsdp")
TWO_OF_DEEPSPEED = (*TWO_RANKS, "--backend", "deepspeed")


@pytest.fixture
def train(tmp_path, monkeypatch, cluster, capfd):
    """Runs ``rlhf train``, where no file may grow beyond 4 KiB in one rank after a step; returns code and messages."""
    from rlhf_cli.main import main

    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}="} for n in range(0, 999, 37)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "vary.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)

    def run(rank, *flags, step=2):
        (tmp_path / "full_loss.py").write_text(
            LOSS.replace("HERE", str(rank)).replace("NOW", str(step))
        )
        code = main(["train", *WORDS, *flags])
        return code, capfd.readouterr().err + (tmp_path / "run/run.log").read_text()

    return run


def saved(folder):
    return sorted(path.name for path in (folder / "run/checkpoints").iterdir())


@pytest.mark.parametrize(
    ("rank", "flags"),
    [
        (0, ()),
        (1, TWO),
        pytest.param(0, TWO, marks=pytest.mark.matrix),
        (1, TWO_OF_DEEPSPEED),
    ],
)
def test_a_checkpoint_that_a_rank_cannot_write_may_be_left_out(train, tmp_path, rank, flags):
    code, told = train(rank, *flags, *EACH_STEP, "--checkpoint.on_write_error", "skip")

    assert code == 0, told
    assert "the checkpoint of step 2 in" in told
    assert "File too large. Make room there, and start again. Earlier checkpoints" in told
    assert "untouched. The run goes on (--checkpoint.on_write_error skip)" in told
    assert "Traceback" not in told
    assert saved(tmp_path) == ["step-00000001", "step-00000003"]


@pytest.mark.parametrize("flags", [TWO, pytest.param(TWO_OF_DEEPSPEED, marks=pytest.mark.matrix)])
def test_a_rank_that_cannot_write_ends_the_run_by_name(train, tmp_path, flags):
    code, told = train(1, *flags, *EACH_STEP)

    assert code == 1
    assert "error: the checkpoint of step 2 in" in told
    assert "of this role failed" in told or "policy rank 1" in told
    assert "File too large. Make room there, and start again" in told
    assert "Earlier checkpoints are untouched" in told
    assert "Traceback" not in told
    assert saved(tmp_path) == ["step-00000001"]


@pytest.mark.parametrize("flags", [TWO, pytest.param(TWO_OF_DEEPSPEED, marks=pytest.mark.matrix)])
def test_a_model_that_a_rank_cannot_write_is_named_and_not_there(train, tmp_path, flags):
    code, told = train(0, *flags, "--checkpoint.at_end", "false", step=3)

    assert code == 1
    assert "error: run/model could not be written: policy rank" in told
    assert "File too large. Make room there, and start again" in told
    assert "--resume auto exports it" in told
    assert "Traceback" not in told
    assert not list((tmp_path / "run").glob("model*"))
