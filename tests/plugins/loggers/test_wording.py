import math

import pytest

from rlhf_plugin_loggers.wording import (
    duration,
    eval_words,
    headlines,
    number,
    rate,
    step_words,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.5123, "0.512"),
        (-0.25, "-0.250"),
        (0.00312, "0.0031"),
        (1.5, "1.500"),
        (12.344, "12.34"),
        (123.44, "123.4"),
        (1234.4, "1234"),
        (1e-5, "1e-05"),
        (2.5e7, "2.5e+07"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(950, "950 tok/s"), (8120, "8.1k tok/s"), (34_400, "34k tok/s"), (1.25e6, "1.2M tok/s")],
)
def test_rates_have_a_unit(value, text):
    assert rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (62, "1:02 min"),
        (3723, "1:02:03 h"),
        (2 * 86400 + 3 * 3600 + 4 * 60, "2 d 03:04 h"),
    ],
)
def test_durations_round_to_seconds(seconds, text):
    assert duration(seconds) == text


def test_a_step_shows_what_there_is_in_order_of_importance():
    metrics = {"policy/entropy": 1.5, "reward/mean": 0.25, "timing/generate_tokens_per_s": 8000}

    assert step_words(metrics) == ["reward 0.250", "entropy 1.500", "generate 8.0k tok/s"]


def test_a_step_without_metrics_shows_nothing():
    assert step_words({}) == []


def test_the_kl_to_the_reference_hides_the_kl_to_the_old_policy():
    assert step_words({"policy/approx_kl": 0.1}) == ["KL(old) 0.100"]
    assert step_words({"policy/approx_kl": 0.1, "kl/ref": 0.2}) == ["KL(ref) 0.200"]


def test_the_headline_of_a_set_is_its_pass_rate_or_else_its_reward():
    names = {
        "eval/test/T0/reward",
        "eval/test/T0/pass@1",
        "eval/test/T0/pass@8",
        "eval/test/T1/reward",
        "eval/web/math/T0/pass@1",
        "eval/odd/T0/truncated",
        "reward/mean",
    }

    assert headlines(names) == [
        "eval/test/T0/pass@1",
        "eval/test/T1/reward",
        "eval/web/math/T0/pass@1",
    ]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"loss/preference": 0.69, "preference/accuracy": 0.5}, ["loss 0.690", "accuracy 0.500"]),
        ({"ranking/accuracy": 1.0, "loss/ranking": 0.5}, ["loss 0.500", "accuracy 1.000"]),
        ({"steps/accuracy": 1.0, "loss/steps": 0.5}, ["loss 0.500", "accuracy 1.000"]),
        ({"distill/kl": 0.25, "sft/nll": 2.0}, ["loss 2.000", "KL(teacher) 0.250"]),
    ],
)
def test_a_step_of_each_command_shows_its_loss(metrics, words):
    assert step_words(metrics) == words


@pytest.mark.parametrize(
    ("names", "headline", "words"),
    [
        ({"eval/nll", "eval/perplexity", "eval/token_accuracy"}, "eval/nll", "held-out nll"),
        ({"eval/loss", "eval/accuracy"}, "eval/accuracy", "held-out accuracy"),
        ({"eval/loss", "eval/margin", "eval/a/loss"}, "eval/loss", "held-out loss"),
    ],
)
def test_the_headline_of_held_out_rows_is_one_of_all_of_them(names, headline, words):
    assert headlines(names) == [headline]
    assert eval_words({headline: 0.5}) == [f"{words} 0.500"]


def test_an_evaluation_names_set_temperature_and_metric():
    metrics = {"eval/web/math/T0.6/pass@1": 0.5, "eval/web/math/T0.6/reward": 0.7}

    assert eval_words(metrics) == ["web/math T0.6 pass@1 0.500"]
