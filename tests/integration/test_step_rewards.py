"""``rlhf train`` with rewards on single tokens: an estimator credits them there, and a kill changes nothing."""

import json

import pytest

from .forked_runs import (
    check_that_killed_runs_resume,
    records,
    train_in_a_fork,
    weights_digest,
    write_workspace,
)

pytestmark = pytest.mark.slow

REWARD = """
def in_steps(token_ids, action_mask):
    written = [token for token, is_action in zip(token_ids, action_mask) if is_action]
    return {"step_rewards": [(at, 0.25 * (token % 3)) for at, token in enumerate(written)]}


def at_the_end(token_ids, action_mask):
    return sum(part for _, part in in_steps(token_ids, action_mask)["step_rewards"])
"""

SHORT = ("--train.steps", "4", "--checkpoint.every", "2")
IN_STEPS = ("--reward", "steps.py:in_steps", "--reward.in_steps.step_rewards", "true")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = write_workspace(tmp_path_factory.mktemp("steps"))
    (folder / "steps.py").write_text(REWARD)
    return folder


@pytest.fixture(scope="module")
def killed(workspace):
    """The run ``whole``, and one that was killed in the updates of step 3."""
    words = ["train", "-c", "run.toml", *SHORT, *IN_STEPS]
    check_that_killed_runs_resume(workspace, words, "train", [3])


@pytest.mark.usefixtures("killed")
def test_a_killed_run_resumes_to_the_same_numbers(workspace):
    """The comparison is the fixture's; here, that there were rewards to lose."""
    assert any(line["reward/mean"] > 0 for line in records(workspace / "whole", "metrics"))


@pytest.mark.usefixtures("killed")
def test_samples_show_the_parts_of_their_reward(workspace):
    lines = (workspace / "whole" / "samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]

    assert samples
    for sample in samples:
        total = sum(part for _, part in sample["step_rewards"])
        assert sample["reward"] == pytest.approx(total, abs=1e-6)


@pytest.mark.usefixtures("killed")
def test_the_same_sum_at_the_end_is_another_run(workspace):
    status = train_in_a_fork(workspace, "end", *SHORT, "--reward", "steps.py:at_the_end")

    assert status == 0, (workspace / "end.log").read_text()
    first, other = (records(workspace / name, "metrics")[0] for name in ("whole", "end"))
    # The first rollouts are the same samples, with the same rewards in all.
    assert first["reward/mean"] == pytest.approx(other["reward/mean"], abs=1e-6)
    assert first["advantage/abs_mean"] != pytest.approx(other["advantage/abs_mean"], rel=1e-3)
    assert weights_digest(workspace / "whole") != weights_digest(workspace / "end")
