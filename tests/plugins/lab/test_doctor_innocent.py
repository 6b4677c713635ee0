"""What healthy runs have shown that looked like a fault: each case is one that was blamed, beside the fault itself."""

import pytest
from tests.plugins.lab.test_doctor import (
    FLAT,
    GAP,
    HELD,
    RISING,
    SOLVED,
    STEPS,
    found,
    line,
    record,
    texts,
    truncated,
)

from rlhf_plugin_lab.doctor.command import diagnoses_of
from rlhf_plugin_lab.doctor.diagnosis import diagnose
from rlhf_plugin_lab.doctor.record import Texts
from rlhf_plugin_lab.doctor.text import Text


@pytest.mark.parametrize(
    ("options", "gap", "is_found"),
    [
        ({"rollout.top_p": "0.95"}, 0.071, False),  # -ln 0.95 = 0.0513, and 0.02 are asked for
        ({"rollout.top_p": "0.95"}, 0.072, True),
        ({"rollout.top_p": "1.0"}, 0.021, True),
        ({"rollout.top_k": "0", "rollout.min_p": "0.0"}, 0.021, True),
        ({"rollout.top_k": "20"}, 1.0, False),
        ({"rollout.min_p": "0.1"}, 1.0, False),
    ],
)
def test_what_a_sampler_leaves_out_is_no_sign_of_older_weights(options, gap, is_found):
    metrics = FLAT | {GAP: [0.0009] + [gap] * (STEPS - 1)}

    assert ("old_weights" in found(metrics, options=options)) == is_found


def judged(cut_reward, whole_reward):
    """Return the verdict on a run in which nearly all answers are cut."""
    rows = [
        Text(step, f"0.{step}{at}", f"{step}{at}", reward, truncated=is_cut)
        for step in range(1, 11)
        for at, (reward, is_cut) in enumerate([(cut_reward, True), (whole_reward, False)])
    ]
    run = record(FLAT | truncated(0.96), texts=Texts(first=rows, last=rows, steps=10))
    return diagnose(run, diagnoses_of(run))


def test_a_limit_that_lets_answers_earn_is_a_hint_and_one_that_voids_them_is_a_finding():
    assert "cut_off" in judged(cut_reward=0.0, whole_reward=1.0).found
    assert "cut_off" in judged(cut_reward=0.0, whole_reward=0.0).found

    earning = judged(cut_reward=0.5, whole_reward=0.0)
    assert "cut_off" in earning.hints
    assert "cut_off" not in earning.found


@pytest.mark.parametrize(("held_out", "is_found"), [(0.96, False), (0.94, True), (None, True)])
def test_a_task_that_is_solved_held_out_may_be_certain_of_itself(held_out, is_found):
    """Filters drop groups whose samples are alike, so that those that train always differ in their rewards."""
    certain = RISING | {"policy/entropy": [2.0] * 90 + [0.005] * 10}
    metrics = certain if held_out is None else certain | {HELD: [0.0, held_out]}
    rows = texts(str, reward_of=lambda at: at % 2)

    assert ("entropy_gone" in found(metrics, texts=rows)) == is_found


@pytest.mark.parametrize(("answer", "is_found"), [("777", True), ("", False)])
def test_a_policy_that_has_learned_to_end_ignores_no_prompt_yet(answer, is_found):
    rows = texts(lambda at: answer, lambda at: 1.0)

    assert ("prompt_ignored" in found(SOLVED, texts=rows)) == is_found


def test_the_gap_that_top_p_explains_grows_with_the_entropy():
    """A run of the healthy ones: 0.0009 nats while the policy was certain, 0.043 when it was not."""
    metrics = FLAT | {GAP: [0.0009, *line(0.02, 0.043, STEPS - 1)]}

    assert "old_weights" not in found(metrics, options={"rollout.top_p": "0.95"})
    assert "old_weights" in found(metrics)
