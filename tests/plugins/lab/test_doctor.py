"""Diagnoses of ``rlhf doctor`` on records written by hand: one that has each fault, and one at its border."""

import itertools
import json

import pytest
from tests.plugins.lab.run_folders import sample, write_lines

from rlhf_cli.main import main as rlhf
from rlhf_core import ConfigError
from rlhf_plugin_lab.doctor import policy
from rlhf_plugin_lab.doctor.command import address_of, diagnoses_of, main
from rlhf_plugin_lab.doctor.diagnosis import diagnose
from rlhf_plugin_lab.doctor.orders import Orders
from rlhf_plugin_lab.doctor.record import RISEN, Record, Texts, read_record
from rlhf_plugin_lab.doctor.text import Text
from rlhf_plugin_lab.recorded.fates import Fates
from rlhf_plugin_lab.recorded.metrics import Metrics, Series
from rlhf_plugin_lab.recorded.problems import Problems
from rlhf_plugin_loggers import signs
from rlhf_testing.errors import has_code

STEPS = 100


NUMBERS = itertools.count()


def line(first, last, steps=STEPS):
    """Values on a straight line."""
    return [first + (last - first) * at / (steps - 1) for at in range(steps)]


FLAT = {"reward/mean": [0.3] * STEPS, "reward/std": [0.4] * STEPS, "policy/lr": [1e-3] * STEPS}
"""A run whose reward stands still."""
RISING = FLAT | {"reward/mean": line(0.3, 0.8)}
HELD = "eval/held_out/T0/reward"


def record(metrics, steps_of=None, **parts):
    series = {
        name: Series(list((steps_of or {}).get(name, range(1, len(values) + 1))), [0.0] * len(values), list(values))
        for name, values in metrics.items()
    }  # fmt: skip
    last = max(each.steps[-1] for each in series.values())
    return Record(metrics=Metrics(series=series, last_step=last), **parts)


def found(metrics, **parts):
    run = record(metrics, **parts)
    verdict = diagnose(run, diagnoses_of(run))
    return {*verdict.found, *verdict.hints}


def texts(answer_of, reward_of=lambda at: 0.0, per_step=4, copies=1):
    """Rollouts of 20 steps; ``answer_of(at)`` is the answer of the prompt ``at``."""
    first = [
        Text(step, f"0.{step}{at}", f"own {step} {at}", 0.0) for step in range(1, 11) for at in range(per_step)
    ]  # fmt: skip
    last = [
        Text(step, f"1.{step}{at}", answer_of(at), reward_of(at))
        for step in range(11, 21)
        for at in range(per_step)
        for _ in range(copies)
    ]
    return Texts(first=first, last=last, steps=20)


def truncated(share):
    return {"response/truncated": [share] * STEPS, "response/length_mean": [9.0] * STEPS}


def rollouts(cut=0, policy_ends=True, best=1.0):
    """20 steps of 4 rollouts; of the first ones ``cut`` of 4 were cut off and got nothing, others up to ``best``."""
    first = [
        Text(step, f"0.{step}{at}", "12", 0.0 if at < cut else best, truncated=at < cut)
        for step in range(1, 11)
        for at in range(4)
    ]
    last = [
        Text(step, f"1.{step}{at}", f"1 {at}", 0.1, policy_ends=policy_ends)
        for step in range(91, 101)
        for at in range(4)
    ]
    return Texts(first=first, last=last, steps=20)


SHORTER = {
    "response/truncated": line(0.7, 0.1),
    "response/length_mean": line(5.6, 4.2),
    "reward/mean": line(0.0, 0.2),
}
LIMIT = {"rollout.max_new_tokens": "6"}

FALLING = FLAT | {"policy/entropy": line(2.0, 1.5), "advantage/abs_mean": [0.3] * STEPS}
SOLVED = {
    "reward/mean": line(0.1, 1.0, 50) + [1.0] * 50,
    "reward/std": line(0.3, 0.4, 50) + [0.0] * 50,
}
GAP = "mismatch/logprob_diff_mean"
DRIFT = {"response/length_mean": line(10, 40), "response/truncated": line(0.0, 0.8)}
UP = RISING | {HELD: [0.5, 0.4, 0.29, 0.28, 0.29]}
AT = {HELD: [0, 25, 50, 75, 100]}
PHRASES = texts(
    lambda at: f"my honest answer: {at}" if at < 2 else f"no {at}", lambda at: float(at < 2)
)
CLIP = {"clip/fraction_low": [0.3] * STEPS, "clip/fraction_high": [0.301] * STEPS}
NEGATIVE = {
    "clip/fraction_low": [0.0] * STEPS,
    "policy/ratio": [1.0] * STEPS,
    "advantage/abs_mean": [0.5] * STEPS,
}
STILL = {"policy/grad_norm": [1.0] * STEPS, "policy/entropy": line(2.0, 2.014)}
"""The entropy moves by 0.014 * 80 / 99 from the mean of the first 20 steps to that of the last, 0.56 %."""
DROPPED = {
    step: {"planned": 40, "trained": 4, "dropped": {"no_signal": {"episodes": 36, "number": 9}}}
    for step in range(1, 21)
}
KEPT: Fates = {step: fate | {"trained": 5} for step, fate in DROPPED.items()}

BY_HEART = {"sft/nll": line(2, 1), "eval/nll": [2.0, 1.5, 1.81, 1.82, 1.9]}
HELD_AT = {"eval/nll": [0, 30, 60, 80, 99]}
PASSED = {"eval/nll": [0, 30, 60, 90]}
SURE = FLAT | {"reward/mean": [0.69, 0.71] * 50, "group/reward_std": [0.01] * STEPS}
"""A policy that is sure of its answers: the 0.02 that samples explain, and 3 of 0.4 / sqrt(32), are 0.23 above 0.7."""

CASES = {
    "dead_reward": (
        {"metrics": FLAT | {"reward/std": [0.0] * STEPS}},
        {"metrics": FLAT | {"reward/std": [0.0] * 99 + [1e-3]}},
    ),
    "equal_groups": (
        {"metrics": FLAT | {"group/no_signal": [0.951] * STEPS}},
        {"metrics": FLAT | {"group/no_signal": [0.94] * STEPS}},
    ),
    "reward_lost": (
        {"metrics": FLAT | {"reward/mean": line(0.3, 0.9, 50) + line(0.9, 0.2, 50)}},
        {"metrics": FLAT | {"reward/mean": line(0.3, 0.9, 50) + line(0.9, 0.55, 50)}},
    ),
    "reward_hacking": (
        {"metrics": UP, "steps_of": AT},
        {"metrics": UP | {HELD: [0.5, 0.4, 0.29, 0.31, 0.29]}, "steps_of": AT},
    ),
    "entropy_gone": (
        {"metrics": FLAT | {"policy/entropy": [2.0] * 90 + [0.01] * 10}},
        {"metrics": FLAT | {"policy/entropy": [2.0] * 90 + [0.011] * 10}},
    ),
    "kl_far": (
        {"metrics": FLAT | {"kl/ref": [1.0] * 97 + [10.0] * 3}},
        {"metrics": FLAT | {"kl/ref": [1.0] * 97 + [9.9, 10.0, 10.0]}},
    ),
    "all_clipped": ({"metrics": FLAT | CLIP}, {"metrics": FLAT | CLIP | {"clip/fraction_low": [0.29] * STEPS}}),
    "only_negative": (
        {"metrics": FLAT | NEGATIVE | {"loss/policy": [0.48] * STEPS}},
        {"metrics": FLAT | NEGATIVE | {"loss/policy": [0.48] * 99 + [0.47]}},
    ),
    "rate_too_high": (
        {"metrics": FLAT | {"policy/entropy": [2.0] * 10 + [0.04] * 90}},
        {"metrics": FLAT | {"policy/entropy": [2.0] * 10 + [0.041] * 90}},
    ),
    "rate_too_low": (
        {"metrics": FLAT | STILL},
        {"metrics": FLAT | STILL | {"policy/entropy": line(2.0, 2.016)}},
    ),
    "not_finite": (
        {"metrics": RISING | {"policy/grad_norm": [1.0] * 97 + [None] * 3}},
        {"metrics": RISING | {"policy/grad_norm": [1.0] * 97 + [None, 1.0, None]}},
    ),
    "cut_off": ({"metrics": FLAT | truncated(0.951)}, {"metrics": FLAT | truncated(0.94)}),
    "empty_answers": (
        {"metrics": FLAT | {"response/length_mean": [1.0] * STEPS}},
        {"metrics": FLAT | {"response/length_mean": [1.1] * STEPS}},
    ),
    "length_drift": ({"metrics": FLAT | DRIFT}, {"metrics": FLAT | DRIFT | {"response/truncated": [0.2] * STEPS}}),
    "one_answer": (
        {"metrics": FLAT, "texts": texts(lambda at: "yes")},
        {"metrics": FLAT, "texts": texts(lambda at: "yes" if at else "no")},
    ),
    "prompt_ignored": (
        {"metrics": SOLVED, "texts": texts(lambda at: "777", lambda at: 1.0)},
        {"metrics": SOLVED, "texts": texts(lambda at: "777" if at else "no", lambda at: 1.0)},
    ),
    "against_reward": (
        {"metrics": FLAT, "orders": Orders(pairs=50, agreeing=5, groups=10, step=9)},
        {"metrics": FLAT, "orders": Orders(pairs=50, agreeing=6, groups=10, step=9)},
    ),
    "reward_falls": (
        {"metrics": FALLING | {"reward/mean": line(0.41, 0.185)}, "texts": rollouts()},
        {"metrics": FALLING | {"reward/mean": line(0.41, 0.195)}, "texts": rollouts()},
    ),
    "old_weights": (
        {"metrics": FLAT | {GAP: [0.002, *line(0.019, 0.022, STEPS - 1)]}},
        {"metrics": FLAT | {GAP: [0.003, *line(0.019, 0.022, STEPS - 1)]}},
    ),
    "same_samples": (
        {"metrics": FLAT, "texts": texts(str, copies=2)},
        {"metrics": FLAT, "texts": texts(lambda at: str(next(NUMBERS)), copies=2)},
    ),
    "masked_turn": (
        {"metrics": FLAT, "texts": rollouts(policy_ends=False)},
        {"metrics": FLAT, "texts": rollouts()},
    ),
    "short_answers": (
        {"metrics": FLAT | SHORTER, "texts": rollouts(cut=2), "options": LIMIT},
        {"metrics": FLAT | SHORTER, "texts": rollouts(cut=2, best=0.6), "options": LIMIT},
    ),
    "other_weights": (
        {"metrics": FLAT | {"mismatch/ess": [0.1] * STEPS}},
        {"metrics": FLAT | {"mismatch/ess": [0.11] * STEPS}},
    ),
    "empty_steps": (
        {"metrics": FLAT | {"train/empty_batch": [1.0] * 10}, "steps_of": {"train/empty_batch": range(91, 101)}},
        {"metrics": FLAT | {"train/empty_batch": [1.0] * 9}, "steps_of": {"train/empty_batch": range(92, 101)}},
    ),
    "nearly_all_dropped": ({"metrics": FLAT, "fates": DROPPED}, {"metrics": FLAT, "fates": KEPT}),
    "loss_rises": (
        {"metrics": {"sft/nll": [1.0] * 50 + [1.21] * 50}},
        {"metrics": {"sft/nll": [1.0] * 50 + [1.19] * 50}},
    ),
    "at_chance": (
        {"metrics": {"loss/ranking": [0.7] * STEPS, "ranking/accuracy": [0.51] * STEPS}},
        {"metrics": {"loss/ranking": [0.7] * STEPS, "ranking/accuracy": [0.53] * STEPS}},
    ),
    "wrong_labels": (
        {"metrics": SURE | {HELD: [0.5, 0.96, 0.95, 0.97, 1.0]}, "steps_of": AT, "texts": rollouts()},
        {"metrics": SURE | {HELD: [0.5, 0.94, 0.93, 0.97, 1.0]}, "steps_of": AT, "texts": rollouts()},
    ),
    "wrong_rows": (
        {"metrics": {"sft/nll": [1.0, 1.02] * 50, "eval/nll": [2.0, 0.8, 0.7, 0.7]}, "steps_of": PASSED},
        {"metrics": {"sft/nll": [1.0, 1.02] * 50, "eval/nll": [2.0, 0.82, 0.7, 0.7]}, "steps_of": PASSED},
    ),
    "overfits": (
        {"metrics": BY_HEART, "steps_of": HELD_AT},
        {"metrics": BY_HEART | {"eval/nll": [2.0, 1.5, 1.79, 1.82, 1.9]}, "steps_of": HELD_AT},
    ),
}  # fmt: skip
"""Diagnosis -> a record that has the fault, and one at its border that has not."""


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_found_and_its_border_is_not(name):
    has, has_not = CASES[name]

    assert name in found(**has)
    assert name not in found(**has_not)


def test_every_diagnosis_has_a_case_here():
    both = record(FLAT), record({"sft/nll": [1.0]})

    assert {each.name for run in both for each in diagnoses_of(run)} == set(CASES)


@pytest.mark.parametrize("name", ["equal_groups", "cut_off", "empty_answers", "length_drift", "all_clipped",
                                  "masked_turn", "kl_far", "rate_too_low", "rate_too_high",
                                  "nearly_all_dropped"])  # fmt: skip
def test_a_rising_reward_makes_these_signs_harmless(name):
    has, _ = CASES[name]

    assert name not in found(**has | {"metrics": has["metrics"] | {"reward/mean": line(0.3, 0.8)}})


def test_a_task_that_is_solved_has_not_collapsed():
    solved = SOLVED | {
        "policy/entropy": line(2.0, 0.001, 50) + [0.001] * 50,
        "group/no_signal": line(0.1, 1.0, 50) + [1.0] * 50,
        "response/truncated": [1.0] * STEPS,
        "response/length_mean": [4.0] * STEPS,
        "mismatch/ess": [1.0] * STEPS,
    }

    by_prompt = texts(lambda at: ("yes", "no")[at % 2], lambda at: 1.0, copies=2)
    assert not found(solved, texts=by_prompt)


@pytest.mark.parametrize(
    ("texts", "change"),
    [
        (rollouts(cut=1), {}),  # a quarter was cut off at first
        (rollouts(cut=2), {"response/truncated": [0.7] * STEPS}),  # as many still are
        (rollouts(cut=2), {"response/length_mean": line(5.6, 2.5)}),  # far below the limit
        (rollouts(cut=2), {"response/length_mean": line(4.0, 5.0)}),  # they got longer
        (rollouts(cut=2), {"reward/mean": line(0.0, 0.4)}),  # some are right
        # They were shorter: the policy learned to end first, and what to say then.
        (rollouts(cut=2), {"response/length_mean": line(5.6, 4.0, 60) + line(4.0, 4.6, 40)}),
    ],
)
def test_answers_that_learn_to_end_are_no_finding(texts, change):
    assert "short_answers" in found(FLAT | SHORTER, texts=rollouts(cut=2), options=LIMIT)
    assert "short_answers" not in found(FLAT | SHORTER | change, texts=texts, options=LIMIT)


def test_a_held_out_reward_that_is_lost_again_counts_where_the_training_one_has_not_risen():
    """The unit is the spread of samples' rewards, 0.4: a fall of 0.4 or more, to the first value or below."""
    lost, not_below = [0.2, 0.6, 0.1, 0.05, 0.1], [0.2, 0.7, 0.1, 0.05, 0.21]

    assert "reward_lost" in found(FLAT | {HELD: lost}, steps_of=AT)
    assert "reward_lost" not in found(FLAT | {HELD: [0.2, 0.49, *lost[2:]]}, steps_of=AT)
    assert "reward_lost" not in found(FLAT | {HELD: not_below}, steps_of=AT)
    assert "reward_lost" not in found(RISING | {HELD: lost}, steps_of=AT)


def test_steps_without_any_reward_are_looked_at_by_what_was_dropped():
    """Where filters drop all groups, a step may still train its entropy, and then is no empty one."""
    assert found({"policy/grad_norm": [0.1] * STEPS}, fates=DROPPED) == {"nearly_all_dropped"}


def test_a_policy_that_answers_last_is_told_by_its_parts(tmp_path):
    """A mark that ends a turn is a piece of its own whose text may be empty."""
    parts = [["policy", "12"], ["environment", "hint"], ["policy", ""]]
    wrong = [["policy", "12"], ["environment", "hint3"]]
    write_lines(tmp_path / "samples.jsonl", [sample(parts=parts), sample(parts=wrong), sample()])

    record = read_record(tmp_path, Problems())

    assert [each.policy_ends for each in record.texts.last] == [True, False, True]
    assert [each.turns for each in record.texts.last] == [2, 1, 1]


def test_a_phrase_counts_where_the_held_out_reward_stands_still():
    flat, up = [0.3, 0.31, 0.3, 0.3, 0.33], [0.3, 0.31, 0.3, 0.3, 0.36]
    run = record(RISING | {HELD: flat}, AT, texts=PHRASES)

    sentence = diagnose(run, diagnoses_of(run)).found["reward_hacking"].sentence

    assert '100 % of the best answers contain "my honest answer:"' in sentence
    assert "reward_hacking" not in found(RISING | {HELD: up}, steps_of=AT, texts=PHRASES)
    assert "reward_hacking" not in found(RISING | {HELD: flat}, steps_of=AT)


def test_a_surer_model_that_is_right_more_often_does_not_overfit():
    metrics = {
        "sft/nll": line(2, 1),
        "eval/nll": [2.0, 1.5, 1.81, 1.82, 1.9],
        "eval/accuracy": [0.5, 0.6, 0.6, 0.6, 0.7],
    }
    steps = [0, 30, 60, 80, 99]

    assert not found(metrics, steps_of={"eval/nll": steps, "eval/accuracy": steps})


def test_numbers_that_the_warnings_have_too_are_theirs():
    assert signs.ENTROPY_GONE == policy.ENTROPY_GONE
    assert signs.KL_EXPLODED == policy.KL_FAR
    assert signs.RISEN == RISEN


def test_what_could_not_be_looked_at_has_its_reason():
    verdict = diagnose(
        run := record({"reward/mean": [0.1] * 5, "reward/std": [0.1] * 5}), diagnoses_of(run)
    )

    assert not verdict.found
    assert "dead_reward" in verdict.not_looked_at["fewer than 20 steps"]
    assert verdict.not_looked_at["metrics.jsonl has no kl/ref"] == ["kl_far"]


@pytest.fixture
def dead(tmp_path):
    """A run folder whose reward is constant."""
    run = tmp_path / "a run"
    run.mkdir()
    values = {"reward/mean": 0.5, "reward/std": 0.0, "rollout/samples": 8}
    write_lines(run / "metrics.jsonl", [{"step": step, "metrics": values} for step in range(1, 31)])
    write_lines(run / "samples.jsonl", [sample(step=step) for step in (1, 20)])
    return run


def test_the_command_says_what_is_wrong_and_exits_with_1(dead, capsys):
    assert rlhf(["doctor", str(dead)]) == 1

    said = capsys.readouterr().out
    assert "dead_reward: every sample of 30 steps had the reward 0.5" in said
    assert "samples 240" in said
    assert "--reward.use" in said
    assert "#/step/0//20" in said
    assert "not looked at: kl_far; metrics.jsonl has no kl/ref" in said


def test_json_has_the_same(dead, capsys):
    assert main([str(dead), "--json"]) == 1

    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert finding["diagnosis"] == "dead_reward"
    assert finding["evidence"] == {"reward/mean": 0.5, "steps": 30, "samples": 240}
    assert (finding["step"], finding["address"]) == (30, "#/step/0//20")
    assert (
        "equal_groups"
        in report["not_looked_at"][1]["diagnoses"] + report["not_looked_at"][0]["diagnoses"]
    )


def test_a_run_of_few_steps_exits_with_0(tmp_path, capsys):
    write_lines(
        tmp_path / "metrics.jsonl",
        [{"step": 1, "metrics": {"reward/mean": 0.0, "reward/std": 0.0}}],
    )

    assert main([str(tmp_path)]) == 0
    assert "fewer than 20 steps" in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_one_error(tmp_path):
    with pytest.raises(ConfigError, check=has_code("lab/not-a-run")):
        main([str(tmp_path)])


def test_damaged_records_are_looked_at_as_far_as_they_go(dead, capsys):
    with (dead / "samples.jsonl").open("a") as file:
        file.write('{"step": 21}\n{"step": 22, "uid": 5, "response": [], "reward": "x"}\n{"step"')

    assert main([str(dead)]) == 1
    assert "without step, text and reward" in capsys.readouterr().err


def test_a_step_without_rollouts_leads_to_the_curves(dead):
    (dead / "samples.jsonl").unlink()
    run = read_record(dead, Problems())
    (finding,) = diagnose(run, diagnoses_of(run)).found.values()

    assert address_of(run, finding) == "#/curves"
