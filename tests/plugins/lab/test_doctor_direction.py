"""Evidence of ``rlhf doctor`` that is not one metric: orders of samples, weights that stay behind, one text for all."""

import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.plugins.lab.run_folders import sample, write_lines
from tests.plugins.lab.test_doctor import (
    AT,
    FALLING,
    FLAT,
    GAP,
    HELD,
    LIMIT,
    RISING,
    SHORTER,
    SOLVED,
    STEPS,
    found,
    line,
    record,
    rollouts,
    texts,
)

from rlhf_plugin_lab.doctor.command import diagnoses_of, main
from rlhf_plugin_lab.doctor.diagnosis import diagnose
from rlhf_plugin_lab.doctor.orders import Orders
from rlhf_plugin_lab.doctor.record import Record, Texts, read_record
from rlhf_plugin_lab.doctor.repeated import phrase_of
from rlhf_plugin_lab.doctor.text import Text
from rlhf_plugin_lab.recorded.metrics import Metrics
from rlhf_plugin_lab.recorded.problems import Problems

FALLEN = FALLING | {"reward/mean": line(0.41, 0.1)}
BEHIND = FLAT | {GAP: [1e-7, *line(0.05, 0.3, STEPS - 1)]}
AGE = "rollout/staleness_mean"


def test_a_fall_counts_while_the_policy_tries_other_answers_and_these_differ():
    def falls(**change):
        return "reward_falls" in found(FALLEN | change, texts=rollouts())

    assert falls()
    assert not falls(**{"policy/entropy": line(2.0, 0.5)})  # it collapsed
    assert not falls(**{"advantage/abs_mean": [0.0] * STEPS})  # nothing is trained
    assert not falls(**{"reward/mean": line(0.1, 0.41)})


@pytest.mark.parametrize(
    ("options", "falls"),
    [
        ({"data.sampler": "none", "data.shuffle": "true"}, True),
        ({"data.sampler": "curriculum", "data.shuffle": "true"}, False),
        ({"data.sampler": "none", "data.shuffle": "false"}, False),
    ],
)
def test_prompts_in_an_order_may_get_harder(options, falls):
    assert ("reward_falls" in found(FALLEN, texts=rollouts(), options=options)) == falls


def test_a_fall_within_the_noise_of_batches_is_none():
    """Means of 20 and of 50 steps that alternate by +-d have a variance of d^2 / 19 and d^2 / 49: a fall of 0.25 is 4
    standard errors of their difference at d = 0.0625 / sqrt(1/19 + 1/49) = 0.231."""

    def falls(d):
        means = [0.4 + d * (-1) ** at for at in range(50)] + [
            0.15 + d * (-1) ** at for at in range(50)
        ]
        return "reward_falls" in found(FALLING | {"reward/mean": means}, texts=rollouts())

    assert falls(0.22)
    assert not falls(0.24)


def test_pairs_of_few_groups_do_not_count():
    few = Orders(pairs=500, agreeing=0, groups=9, step=9)

    assert "against_reward" not in found(FLAT, orders=few)


def write_tokens(run, step, advantages):
    """Write the tokens of samples of a step, by name: one of the prompt, and two of an answer."""
    rows = [
        (uid, value) for uid, mean in advantages.items() for value in (None, mean - 0.5, mean + 0.5)
    ]
    columns = {
        "uid": [uid for uid, _ in rows],
        "advantage": pa.array([each for _, each in rows], pa.float32()),
    }
    (run / "tokens").mkdir(exist_ok=True)
    parquet.write_table(pa.table(columns), run / "tokens" / f"step-{step:08d}.parquet")


def test_samples_of_a_group_are_ordered_by_reward_and_by_mean_advantage(tmp_path):
    """Rewards 0, 1, 1 give two pairs that differ; equal advantages, and samples without tokens, give none."""
    rewards = {"0.1.0.0": 0.0, "0.1.1.0": 1.0, "0.1.2.0": 1.0, "0.2.0.0": 0.0, "0.2.1.0": 1.0, "0.3.0.0": 0.0,
               "0.3.1.0": 1.0}  # fmt: skip
    write_lines(
        tmp_path / "samples.jsonl",
        [sample(uid, step=3, reward=each) for uid, each in rewards.items()],
    )
    advantages = {
        "0.1.0.0": 1.0,
        "0.1.1.0": 2.0,
        "0.1.2.0": -1.0,
        "0.2.0.0": 1.0,
        "0.2.1.0": 1.0,
        "0.3.0.0": 0.0,
    }
    write_tokens(tmp_path, 3, advantages)

    assert read_record(tmp_path, Problems()).orders == Orders(pairs=2, agreeing=1, groups=1, step=3)


def test_damaged_files_of_tokens_are_a_problem_and_no_error(tmp_path):
    write_lines(tmp_path / "samples.jsonl", [sample(step=3)])
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "step-00000003.parquet").write_bytes(b"PAR1 no file")
    problems = Problems()

    assert read_record(tmp_path, problems).orders == Orders()
    assert any("files of tokens cannot be read" in each for each in problems.lines())


def test_a_run_without_tokens_says_how_to_record_them():
    run = record(FLAT)

    reasons = diagnose(run, diagnoses_of(run)).not_looked_at

    (reason,) = [why for why, names in reasons.items() if "against_reward" in names]
    assert "--observers.use token_files" in reason


def test_weights_that_stay_behind_show_on_samples_of_the_newest_version_alone():
    def behind(**change):
        return "old_weights" in found(BEHIND | change)

    assert behind()
    assert behind(
        **{"reward/mean": line(0.3, 0.8)}
    )  # a sampler that is late is one in a run that learns, too
    assert not behind(**{AGE: [0.0, *[1.0] * (STEPS - 1)]})  # the age is recorded, and wanted
    fresh = [0.0 if at % 4 == 0 else 2.0 for at in range(STEPS)]
    gaps = [1e-7 if age == 0.0 else 0.3 for age in fresh]
    assert not behind(**{AGE: fresh, GAP: gaps})  # those of age 0 agree
    assert behind(**{AGE: fresh})


@pytest.mark.parametrize(
    "gaps",
    [
        [0.02] * STEPS,  # another precision, from the start
        [0.01, *line(0.01, 0.09, STEPS - 1)],  # grown, as in bfloat16 where probabilities get small
        [1e-7] * 90 + [0.3] * 10,  # the last steps alone
        [1e-7, *[1e-5] * (STEPS - 1)],  # float32
    ],
)
def test_samplers_that_compute_otherwise_have_no_old_weights(gaps):
    assert "old_weights" not in found(FLAT | {GAP: gaps})


def asked(prompts, answer="777"):
    """Rollouts of 20 steps with so many prompts, that have answers of their own at first and one at last."""
    first = [Text(at, f"0.{at}", f"own {at}", 0.0, prompt=f"{at % prompts}") for at in range(40)]
    last = [Text(50 + at, f"1.{at}", answer, 1.0, prompt=f"{at % prompts}") for at in range(40)]
    return Texts(first=first, last=last, steps=20)


def test_a_prompt_that_comes_again_is_one_prompt():
    """A task of one prompt has one answer."""
    assert "prompt_ignored" in found(SOLVED, texts=asked(20))
    assert "prompt_ignored" not in found(SOLVED, texts=asked(19))
    assert "one_answer" in found(FLAT, texts=asked(20))
    assert "one_answer" not in found(FLAT, texts=asked(19))


def test_an_answer_that_was_common_at_first_is_no_find():
    def at_first(prompts):
        """Rollouts of 40 prompts, of which so many got the answer at first that all get at last."""
        said = ["777"] * prompts + ["own"] * (40 - prompts)
        first = [Text(1, "0.1", text, 0.0, prompt=f"{at}") for at, text in enumerate(said)]
        return Texts(first=first, last=asked(40).last, steps=20)

    assert "prompt_ignored" in found(SOLVED, texts=at_first(20))
    assert "prompt_ignored" not in found(SOLVED, texts=at_first(21))


def test_one_text_beside_a_held_out_reward_that_stands_still_is_hacking():
    flat, up = [0.3, 0.31, 0.3, 0.3, 0.33], [0.3, 0.31, 0.3, 0.3, 0.36]

    assert "reward_hacking" in found(RISING | {HELD: flat}, steps_of=AT, texts=asked(40, "77"))
    assert "reward_hacking" not in found(RISING | {HELD: up}, steps_of=AT, texts=asked(40, "77"))


def test_answers_without_words_have_phrases_of_characters():
    found_phrase = phrase_of(
        texts(lambda at: f"{at}7772" if at < 2 else "5", lambda at: float(at < 2))
    )

    assert found_phrase is not None
    assert found_phrase.text in ("777", "772")


def test_a_burst_at_first_is_a_rate_that_was_too_high():
    """Later updates move nothing, for nothing is left to move."""
    burst = FLAT | {
        "policy/entropy": [2.0] * STEPS,
        "policy/approx_kl": [0.0, *[0.51] * 10, *[0.01] * 89],
        AGE: [2.0] * STEPS,
    }
    run = record(burst)

    finding = diagnose(run, diagnoses_of(run)).found["rate_too_high"]

    assert "rollout.max_staleness" in finding.change
    assert "rate_too_high" not in found(
        burst | {"policy/approx_kl": [0.0, *[0.51] * 4, *[0.01] * 95]}
    )
    # A rise counts in standard deviations of samples, 0.4; windows of 20 steps see 0.81 of a line.
    assert "rate_too_high" in found(burst | {"reward/mean": line(0.3, 0.42)})
    assert "rate_too_high" not in found(burst | {"reward/mean": line(0.3, 0.43)})


def test_a_hint_is_shown_and_leaves_the_exit_code_at_0(tmp_path, capsys):
    names = ("reward/mean", "reward/std", *SHORTER)
    values = FLAT | SHORTER
    steps = [
        {"step": at + 1, "metrics": {name: values[name][at] for name in names}}
        for at in range(STEPS)
    ]
    write_lines(tmp_path / "metrics.jsonl", steps)
    (tmp_path / "config.toml").write_text("[rollout]\nmax_new_tokens = 6\n")
    recorded = rollouts(cut=2)
    write_lines(tmp_path / "samples.jsonl", [
        sample(f"{each.group}.0.0", step=each.step, response=each.answer, reward=each.reward, truncated=each.truncated)
        for each in (*recorded.first, *recorded.last)
    ])  # fmt: skip

    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "hint, short_answers: " in said
    assert "0 found, hints: 1" in said

    assert main([str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["diagnosis"] for each in report["hints"]] == ["short_answers"]
    assert report["findings"] == []


def test_a_hint_is_no_finding():
    run = Record(metrics=Metrics(series={}, last_step=0))
    assert not diagnose(run, diagnoses_of(run)).hints

    run = record(FLAT | SHORTER, texts=rollouts(cut=2), options=LIMIT)
    verdict = diagnose(run, diagnoses_of(run))
    assert list(verdict.hints) == ["short_answers"]
    assert "short_answers" not in verdict.found
