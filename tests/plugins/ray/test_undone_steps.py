"""Runs that fail between the updates of a step: all ranks go back to the step before, which is saved."""

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
import signal
from rlhf_core.contracts import TokenLoss

CALLS = []

def loss(batch):
    CALLS.append(None)
    if os.path.exists("broken"):
        rank, call, how = open("broken").read().split()
        if os.environ.get("RANK", "0") == rank and len(CALLS) == int(call):
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("this loss is broken")
    return TokenLoss(loss=-(batch.policy_logprobs - batch.old_logprobs).exp() * batch.advantages, metrics={})
"""
COMMON = (
    *("--model", "model", "--data", "mine.jsonl", "--reward", "vary.py:score"),
    *("--loss", "broken_loss.py:loss", "--rollout.batch_size", "2"),
    *("--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "6"),
    *("--data.max_prompt_tokens", "8", "--log.progress", "off", "--log.tensorboard", "false"),
    *("--log.curve", "false", "--checkpoint.every_minutes", "0", "--steps", "3"),
    *("--train.inner_epochs", "3", "--runtime", "ray"),
)
UPDATES = 3
"""Updates of a step, each with one loss on a rank."""
TWO = ("--runtime.ray.ranks.policy", "2", "--runtime.ray.cpus_per.policy", "0.5")
WAYS = {
    "one rank": (),
    "fsdp": (*TWO, "--backend", "fsdp"),
    "zero 3": (*TWO, "--backend", "deepspeed", "--backend.deepspeed.zero_stage", "3"),
    "learner": (*TWO, "--backend", "fsdp", "--runtime.ray.learner", "process"),
    "critic": (
        *("--backend", "fsdp", "--estimator", "gae", "--runtime.ray.cpus_per.policy", "0.5"),
        *("--runtime.ray.cpus_per.critic", "0.5"),
    ),
}


@pytest.fixture
def train(tmp_path, monkeypatch, cluster, capfd):
    """Runs ``rlhf train`` in a folder, where a broken loss may end it; returns its run folder."""
    from rlhf_cli.main import main

    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}="} for n in range(0, 999, 37)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "vary.py").write_text(REWARD)
    (tmp_path / "broken_loss.py").write_text(LOSS)
    monkeypatch.chdir(tmp_path)

    def run(output, *flags, broken="", code=0):
        if broken:
            (tmp_path / "broken").write_text(broken)
        estimator = () if "--estimator" in flags else ("--estimator", "reinforce")
        assert main(["train", *COMMON, *estimator, "--output", output, *flags]) == code
        (tmp_path / "broken").unlink(missing_ok=True)
        assert ("this loss is broken" in capfd.readouterr().err) == broken.endswith("raises")
        return tmp_path / output

    return run


def left_by(run):
    """Metrics and weights of a run that has ended."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return (
        [line["metrics"] for line in lines if "metrics" in line],
        {file.name: file.read_bytes() for file in (run / "model").glob("*.safetensors")},
    )


def saved(run):
    return [path.name for path in (run / "checkpoints").glob("step-*")]


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=() if way in ("fsdp", "learner") else pytest.mark.matrix)
        for way in WAYS
    ],
)
def test_a_step_that_fails_on_the_last_rank_after_its_first_update_is_undone_on_all(train, way):
    flags = WAYS[way]
    last = "1" if "--runtime.ray.ranks.policy" in flags else "0"
    whole = train("whole", *flags)

    run = train("failed", *flags, broken=f"{last} {UPDATES + 2} raises", code=1)

    assert saved(run) == ["step-00000001"]
    train("failed", *flags, "--resume", "auto")
    assert left_by(run) == left_by(whole)


def test_a_step_that_fails_before_its_first_update_leaves_the_one_before_whole(train):
    run = train("failed", *WAYS["fsdp"], broken=f"1 {UPDATES + 1} raises", code=1)

    assert saved(run) == ["step-00000001"]


def test_a_step_in_which_a_rank_dies_is_not_undone(train):
    run = train("failed", *WAYS["fsdp"], broken=f"1 {UPDATES + 2} dies", code=1)

    assert saved(run) == []
    assert "step 2 failed when weights may have changed" in (run / "run.log").read_text()


def test_a_rank_that_dies_before_a_steps_first_update_throws_the_run_back_and_it_says_how_far(
    train,
):
    run = train("failed", *WAYS["fsdp"], broken=f"1 {UPDATES + 1} dies", code=1)

    assert saved(run) == []
    log = (run / "run.log").read_text()
    assert "step 1 could not be saved: " in log
    assert "no checkpoint was due before, and --resume restart starts over and does 1 step" in log


def test_a_role_that_is_larger_than_the_option_lets_it_be_is_not_undone(train):
    flags = (*WAYS["fsdp"], "--checkpoint.undo_gib", "0.000001")
    run = train("failed", *flags, broken=f"1 {UPDATES + 2} raises", code=1)

    assert saved(run) == []
    assert (run / "run.log").read_text().count("the policy is not copied before a step: ") == 1
    assert "step 2 failed when weights may have changed" in (run / "run.log").read_text()
