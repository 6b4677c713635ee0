"""Runs from which no step is left to learn: they end by name after ``train.max_empty_steps``, with the last whole step
saved, and from where they go on they end again."""

import pytest

from rlhf_core import Component, EmptyStepsError
from rlhf_core.contracts import RewardResult
from rlhf_testing.errors import has_code

LIMIT = 3
CASES = {
    "dynamic_sampling and a constant reward": (
        {"use": ["constant"], "constant": {"isolate": False}},
        {"filters": ["dynamic_sampling"], "max_refills": 1},
        # Two groups a step, and two more.
        f"all groups were dropped (too_easy: {4 * LIMIT})",
    ),
    "zero_variance and a constant reward": (
        {"use": ["constant"], "constant": {"isolate": False}},
        {"filters": ["zero_variance"], "max_refills": 0},
        f"all groups were dropped (same_reward: {2 * LIMIT})",
    ),
    "a reward that always raises, whose errors are dropped": (
        {"use": ["raising"], "raising": {"isolate": False, "on_error": "drop"}},
        {},
        f"all groups were dropped (raising_failed: {2 * LIMIT})",
    ),
}


class Constant:
    async def score(self, requests):
        return [RewardResult(reward=1.0) for _ in requests]


class Raising:
    async def score(self, requests):
        raise ValueError("this reward is broken")


def count_changes(runtime):
    """Have the role say that its weights never change, so that a failed run may be saved."""
    runtime.role.changes = 0


@pytest.fixture
def run(small_run):
    """Runs a case for many more steps than the limit."""
    for name, reward in (("constant", Constant), ("raising", Raising)):
        component = Component(name=name, factory=lambda config, reward=reward: reward())
        small_run.with_component("rlhf_rewards", component)

    def start(case, *changes):
        reward, rollout, _ = CASES[case]
        train = {"steps": 25, "max_empty_steps": LIMIT}
        changes = {"reward": reward, "rollout": rollout, "train": train}, *changes
        return small_run(*changes, prepare=count_changes)

    return start


@pytest.mark.parametrize("case", CASES)
def test_it_ends_by_name_with_what_was_expected_what_came_and_the_fix(small_run, run, case):
    with pytest.raises(EmptyStepsError) as ended:
        run(case)

    message = str(ended.value)
    assert (
        f"nothing was learned from rewards in {LIMIT} steps in a row, up to step {LIMIT}: "
        in message
    )
    assert CASES[case][2] in message
    for fix in ("on_error", "--rollout.filters", "--train.max_empty_steps"):
        assert fix in message
    assert small_run.runtime.learner.requests == []
    assert small_run.checkpoints() == [LIMIT - 1]
    assert small_run.results[-1].status == "failed"
    log = (small_run.folder / "run/run.log").read_text()
    assert f"The run ends after {LIMIT} such steps (--train.max_empty_steps)" in log


def test_a_resume_counts_on_and_ends_at_its_first_step(small_run, run):
    case = next(iter(CASES))
    with pytest.raises(EmptyStepsError):
        run(case)

    with pytest.raises(
        EmptyStepsError, match=f"{LIMIT} steps", check=has_code("training/empty-steps")
    ):
        run(case, {"resume": {"checkpoint": "auto"}})

    assert len(small_run.lines()) == LIMIT - 1


def test_steps_whose_samples_are_all_cut_off_and_masked_count_too(small_run):
    train = {"steps": 25, "max_empty_steps": LIMIT}
    masked = {"algo": {"loss": {"mask_truncated": True}}, "train": train}

    def prepare(runtime):
        count_changes(runtime)
        runtime.engine._script = lambda *_: "an answer that never ends"

    with pytest.raises(EmptyStepsError) as ended:
        small_run(masked, {"rollout": {"max_new_tokens": 2}}, prepare=prepare)

    assert "--algo.loss.mask_truncated" in str(ended.value)
    assert len(small_run.runtime.learner.requests) == LIMIT
