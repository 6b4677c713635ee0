"""Runs that fail in a step: the last whole step is saved if the failure left it whole, and a resumed run gives the
numbers of one that did not fail."""

import json
import shutil

import pytest
import torch

from rlhf_trainer.durable.records import replay

from .forked_runs import (
    CONFIG,
    metrics_without_times,
    records,
    saved_steps,
    train_in_a_fork,
    weights_digest,
    write_workspace,
)

REWARD = """
import os

def score(response, row):
    if os.path.exists("broken_row") and row["answer"] == open("broken_row").read():
        raise ValueError("this reward is broken")
    return sum(a == b for a, b in zip(response, row["answer"])) / 4 + response.count("1") / 10
"""
LOSS = """
import os
from rlhf_core.contracts import TokenLoss

CALLS = []

def loss(batch):
    CALLS.append(None)
    if os.path.exists("broken_call") and len(CALLS) == int(open("broken_call").read()):
        raise ValueError("this loss is broken")
    return TokenLoss(loss=-(batch.policy_logprobs - batch.old_logprobs).exp() * batch.advantages, metrics={})
"""
UPDATES = 4
"""Updates of a step: two minibatches, twice."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    workspace = write_workspace(tmp_path_factory.mktemp("failed"))
    (workspace / "broken.py").write_text(REWARD)
    (workspace / "broken_loss.py").write_text(LOSS)
    # By steps and time no checkpoint is written: what is there was saved by the failure.
    config = CONFIG.replace("every = 3", "every_minutes = 0.0")
    (workspace / "run.toml").write_text(config.replace("reward.py:score", "broken.py:score"))
    return workspace


def answer_first_drawn_at(run, step):
    """The right answer to a prompt that the run draws at a step, and at none before."""
    lines = map(json.loads, (run / "samples.jsonl").read_text().splitlines())
    drawn = [(line["step"], line["prompt"].removesuffix("=")[::-1]) for line in lines]
    before = {answer for at, answer in drawn if at < step}
    return next(answer for at, answer in drawn if at == step and answer not in before)


def check_goes_on(workspace, name, *flags):
    if not (workspace / f"{name}-whole").exists():
        assert train_in_a_fork(workspace, f"{name}-whole", *flags) == 0
    assert train_in_a_fork(workspace, name, *flags, "--resume", "auto") == 0, (
        workspace / f"{name}.log"
    ).read_text()
    whole, resumed = workspace / f"{name}-whole", workspace / name
    assert metrics_without_times(resumed) == metrics_without_times(whole)
    assert weights_digest(resumed) == weights_digest(whole)
    assert replay(resumed / "ledger.jsonl").unsettled() == []


def test_a_run_whose_reward_fails_goes_on_from_its_last_whole_step(workspace):
    assert train_in_a_fork(workspace, "reward-whole") == 0
    (workspace / "broken_row").write_text(answer_first_drawn_at(workspace / "reward-whole", 3))
    try:
        assert train_in_a_fork(workspace, "reward") != 0
    finally:
        (workspace / "broken_row").unlink()

    done = len(records(workspace / "reward", "metrics"))
    assert "this reward is broken" in (workspace / "reward.log").read_text()
    assert done == 2
    assert saved_steps(workspace / "reward") == [done]
    check_goes_on(workspace, "reward")


def spoil_the_weights_at_the_end_of_step_3():
    from rlhf_plugin_local.torch_backend import TorchBackend

    train_step, calls = TorchBackend.train_step, []

    def spoiling(self, batch, plan):
        outcome = train_step(self, batch, plan)
        calls.append(None)
        if len(calls) == 3 * UPDATES:
            with torch.no_grad():
                self.module().model.model.norm.weight[0] = torch.inf
        return outcome

    TorchBackend.train_step = spoiling


def test_weights_that_are_no_numbers_never_replace_a_checkpoint_that_is_whole(workspace):
    """With the same seed a run that continued from them would fail in the same way, whenever it is started again."""
    flags = ("--estimator", "reinforce", "--checkpoint.every", "1", "--checkpoint.keep", "1")
    prepare = spoil_the_weights_at_the_end_of_step_3
    assert train_in_a_fork(workspace, "spoiled", *flags, prepare=prepare) != 0

    assert saved_steps(workspace / "spoiled") == [2]
    told = (workspace / "spoiled.log").read_text()
    assert "1 of the 16 weights model.norm.weight of the policy are NaN or infinite" in told
    check_goes_on(workspace, "spoiled", *flags)


WAYS = {
    "adam": ("--estimator", "reinforce"),
    "adam-16": ("--estimator", "reinforce", "--model.dtype", "bfloat16"),
    "muon": ("--estimator", "reinforce", "--optim", "muon"),
    "lora": ("--estimator", "reinforce", "--actor.adapter", "lora"),
    # Its critic is updated before the policy, and once more than this.
    "critic": (),
}
"""What a step changes, by name: the options of a run."""


def fail_at_update(workspace, name, step, update, *flags):
    """Have a run's loss fail at an update of a step of the policy."""
    (workspace / "broken_call").write_text(str((step - 1) * UPDATES + update))
    try:
        assert train_in_a_fork(workspace, name, "--loss", "broken_loss.py:loss", *flags) != 0
    finally:
        (workspace / "broken_call").unlink()
    assert "this loss is broken" in (workspace / f"{name}.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "step", "update"),
    [("adam", 3, 1), *((way, 3, 2) for way in WAYS), ("critic", 2, UPDATES)],
)
def test_a_run_whose_loss_fails_goes_on_from_its_last_whole_step(workspace, way, step, update):
    """Before anything of a step has changed, after its first update, and before its last."""
    name = f"loss-{way}"
    shutil.rmtree(workspace / name, ignore_errors=True)
    fail_at_update(workspace, name, step, update, *WAYS[way])

    assert saved_steps(workspace / name) == [step - 1]
    check_goes_on(workspace, name, "--loss", "broken_loss.py:loss", *WAYS[way])


@pytest.mark.slow
def test_a_run_that_keeps_no_copy_says_how_far_back_a_failure_between_updates_throws_it(workspace):
    flags = (*WAYS["adam"], "--checkpoint.undo_gib", "0")
    fail_at_update(workspace, "no-copy", 3, 2, *flags)

    assert saved_steps(workspace / "no-copy") == []
    flags = ("--loss", "broken_loss.py:loss", *flags)
    assert train_in_a_fork(workspace, "no-copy", *flags, "--resume", "auto") != 0
    assert "--resume restart starts over" in (workspace / "no-copy.log").read_text()
    assert train_in_a_fork(workspace, "no-copy", *flags, "--resume", "restart") == 0
    assert len(records(workspace / "no-copy" / "earlier-1", "metrics")) == 2
