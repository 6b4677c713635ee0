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

from rlhf_plugin_lab.doctor import standstill
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


def judge(metrics, **parts):
    """Return names of the findings and names of the hints."""
    run = record(metrics, **parts)
    verdict = diagnose(run, diagnoses_of(run))
    return {*verdict.found}, {*verdict.hints}


TRIES = [0.437, 0.388, 0.337, 0.274, 0.238, 0.211, 0.188, 0.172, 0.162, 0.158]
"""Entropy of the ten steps in which a run gave one answer to all prompts; 20 steps later it gave others."""
COMPARES = [1.0, 0.75, 0.875, 1.0, 0.875, 0.75, 1.0, 0.875, 0.75, 1.0,
            1.0, 0.875, 1.0, 1.0, 0.875, 1.0, 1.0, 1.0, 0.875, 1.0]  # fmt: skip
"""Share of its groups without signal in 20 steps: 7.5 % had one."""
STUCK = {
    "policy/entropy": [2.0] * 90 + [0.0322] * 10,
    "group/no_signal": [0.5] * 80 + [0.9844] * 20,
}
"""A run whose entropy was pushed down, as it ended: 1.56 % of its groups had a signal."""
ONE_ANSWER = texts(lambda at: "r")
SAME_SAMPLES = texts(str, copies=2)


@pytest.mark.parametrize("name", ["one_answer", "same_samples"])
@pytest.mark.parametrize(
    ("metrics", "is_sure"),
    [
        (STUCK, True),
        (STUCK | {"policy/entropy": [2.0] * 90 + TRIES}, False),
        (STUCK | {"group/no_signal": [0.5] * 80 + COMPARES}, False),
        ({"group/no_signal": STUCK["group/no_signal"]}, False),  # not known to be certain
        ({"policy/entropy": STUCK["policy/entropy"]}, False),  # one sample of each prompt
    ],
)
def test_a_policy_that_still_tries_or_compares_may_leave_its_answer(name, metrics, is_sure):
    rows = {"one_answer": ONE_ANSWER, "same_samples": SAME_SAMPLES}[name]
    found, hints = judge(FLAT | metrics, texts=rows)

    assert (name in found, name in hints) == (is_sure, not is_sure)


def test_samples_that_were_alike_at_step_40_solved_their_task_at_step_50():
    """A run of the healthy ones: 98 % of its recorded groups were alike, and 7 % of all had different rewards."""
    entropy = [0.165, 0.122, 0.137, 0.113, 0.109, 0.091, 0.093, 0.084, 0.078, 0.069,
               0.068, 0.065, 0.067, 0.067, 0.067, 0.072]  # fmt: skip
    alike = [0.75, 0.938, 0.938, 1.0, 0.75, 0.875, 0.938, 1.0, 0.938, 0.875,
             0.938, 0.938, 0.938, 0.938, 1.0, 0.938, 0.938, 0.938, 1.0, 1.0]  # fmt: skip
    metrics = {
        "reward/mean": [*line(0.08, 0.66, 13), *[0.66] * 27],
        "reward/std": [*line(0.27, 0.47, 13), *[0.48] * 27],
        "policy/entropy": [*line(3.0, 0.17, 24), *entropy],
        "group/no_signal": [*line(0.44, 0.9, 20), *alike],
    }

    assert judge(metrics, texts=SAME_SAMPLES) == (set(), {"same_samples"})


ABLE = {
    "reward/mean": [0.984, 1.0, 1.0, 1.0, 1.0, 0.875, 1.0, 0.844, 0.719, 1.0,
                    0.984, 0.953, 0.984, 0.984, 0.984, 1.0, 1.0, 1.0, 1.0, 1.0],
    "reward/std": [0.124, 0.0, 0.0, 0.0, 0.0, 0.331, 0.0, 0.363, 0.45, 0.0,
                   0.124, 0.211, 0.124, 0.124, 0.124, 0.0, 0.0, 0.0, 0.0, 0.0],
    "group/no_signal": [0.875, *[1.0] * 6, 0.875, 0.75, 1.0, 0.875, 0.625, *[0.875] * 3, *[1.0] * 5],
    HELD: [1.0, 1.0, 1.0],
}  # fmt: skip
"""The first 20 steps of a model that could its task before the run."""


def test_prompts_that_a_model_could_before_the_run_are_a_hint():
    rows = texts(str, lambda at: 1.0)
    rows.first = [Text(each.step, each.group, each.answer, 1.0) for each in rows.first]

    assert judge(ABLE, texts=rows) == (set(), {"equal_groups"})


@pytest.mark.parametrize("lowest", [0.0, 1.0])
def test_prompts_are_too_easy_by_the_lowest_reward_of_a_rollout_or_of_a_batch(lowest):
    rows = texts(str, lambda at: 1.0)
    rows.first = [Text(each.step, each.group, each.answer, lowest) for each in rows.first]
    easy = {
        "reward/mean": [0.969, *[1.0] * 49],
        "reward/std": [0.05] * 50,
        "group/no_signal": [1.0] * 50,
    }

    assert judge(easy, texts=rows) == (set(), {"equal_groups"})
    assert "equal_groups" in judge(easy | {"reward/mean": [0.5] * 50}, texts=rows)[0]


def test_rewards_that_are_hardly_ever_paid_do_not_solve_a_task():
    """No recorded rollout was paid, and each batch had one that was."""
    rare = {"reward/mean": [0.008] * 50, "reward/std": [0.09] * 50, "group/no_signal": [0.99] * 50}

    assert "equal_groups" in judge(rare, texts=texts(str))[0]


@pytest.mark.parametrize(
    ("steps", "share", "is_sure"),
    [(standstill.YOUNG, 0.98, True), (standstill.YOUNG - 1, 0.98, False), (60, 0.97, False)],
)
def test_a_young_run_without_signal_may_be_slow_to_begin(steps, share, is_sure):
    metrics = {
        "reward/mean": [0.3] * steps,
        "reward/std": [0.4] * steps,
        "group/no_signal": [share] * steps,
    }

    assert judge(metrics) == (({"equal_groups"}, set()) if is_sure else (set(), {"equal_groups"}))


def fates(trained, planned=64):
    """Return what filters dropped in steps that trained so many episodes."""
    return {
        step: {
            "planned": planned,
            "trained": count,
            "dropped": {"same_reward": {"episodes": 264, "number": 33}},
        }
        for step, count in enumerate(trained, 1)
    }


FILTERED = [16, 16, 40, 48, 32, 40, 40, 16, 16, 16, 8, 8, 40, 0, 16, 16, 16, 8, 48, 48]
"""Episodes of the first 20 steps that trained: 488, where 4792 were dropped."""
DONE = [0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0]
"""Of a task that was solved before the run."""


@pytest.mark.parametrize(
    ("trained", "held_out", "is_sure"),
    [
        (FILTERED, [0.5, 0.5], False),
        (DONE, [1.0, 0.5, 0.5, 0.5], True),
        (DONE, [0.5, 1.0], False),
        (DONE, [1.0, 1.0, 1.0, 0.906], False),  # three of 32 prompts, once
        ([0] * 10 + [8] * 10, [0.5, 0.5], True),
        ([0] * 9 + [8] * 11, [0.5, 0.5], False),
    ],
)
def test_what_filters_leave_is_learned_from(trained, held_out, is_sure):
    metrics = FLAT | {HELD: held_out}
    rows = texts(str, lambda at: at % 2)
    found, hints = judge(metrics, fates=fates(trained), texts=rows)

    assert ("nearly_all_dropped" in found, "nearly_all_dropped" in hints) == (is_sure, not is_sure)


def test_steps_that_train_on_nothing_are_a_hint_where_the_task_is_solved():
    empty = FLAT | {"train/empty_batch": [1.0] * 20}
    at, rows = {"train/empty_batch": range(81, 101)}, texts(str, lambda at: at % 2)

    assert "empty_steps" in judge(empty | {HELD: [1.0, 0.5, 0.5, 0.5]}, steps_of=at, texts=rows)[0]
    assert "empty_steps" in judge(empty | {HELD: [1.0, 1.0]}, steps_of=at, texts=rows)[1]


def test_a_task_that_was_solved_before_the_run_may_become_certain():
    """Its reward has nowhere to rise to."""
    metrics = FLAT | {"reward/mean": [1.0] * STEPS, "policy/entropy": [0.3] * 10 + [0.005] * 90}
    rows = texts(str, lambda at: 1.0)

    assert judge(metrics, texts=rows) == (set(), set())
    assert judge(metrics | {"reward/mean": [0.9] * STEPS}, texts=rows)[0] == {
        "entropy_gone",
        "rate_too_high",
    }


@pytest.mark.parametrize(
    ("metrics", "outlook"),
    [
        (STUCK, "nothing moves it from there"),
        (STUCK | {"policy/entropy": [2.0] * 90 + TRIES}, "It still tries others"),
        (STUCK | {"group/no_signal": [0.5] * 80 + COMPARES}, "Some groups still have rewards that differ"),
        ({"policy/entropy": STUCK["policy/entropy"]}, "Whether it can move on is not recorded"),
    ],
)  # fmt: skip
def test_a_state_that_stands_still_is_told_with_what_may_end_it(metrics, outlook):
    run = record(FLAT | metrics, texts=ONE_ANSWER)
    verdict = diagnose(run, diagnoses_of(run))
    told = (verdict.found | verdict.hints)["one_answer"]

    assert outlook in told.sentence
    assert all(number == number for number in told.evidence.values())


@pytest.mark.parametrize(
    ("held_out", "asked", "is_sure"), [(1.0, 40, False), (1.0, 38, True), (0.9, 40, True)]
)
def test_bad_batches_of_a_task_that_is_solved_since_are_a_hint(held_out, asked, is_sure):
    """A run of the healthy ones, two versions ahead: its last three batches were bad, and its weights were not."""
    metrics = {
        "reward/mean": [*[0.98] * 37, 0.375, 0.109, 0.5],
        "reward/std": [*[0.12] * 37, 0.484, 0.312, 0.5],
        HELD: [1.0, 1.0, held_out],
    }
    rows = texts(str, lambda at: at % 2)
    found, hints = judge(metrics, steps_of={HELD: [0, 20, asked]}, texts=rows)

    assert ("reward_lost" in found, "reward_lost" in hints) == (is_sure, not is_sure)
