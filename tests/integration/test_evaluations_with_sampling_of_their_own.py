"""Evaluations answer with limits and a nucleus of their own, and training goes on as without them."""

import json

import pytest

# Answers in training have 4 tokens at most, and prompts 8 (conftest.py).
EVALUATED = ("--eval.fraction", "0.3", "--eval.temperatures", "1")
LONG = ("--eval.max_new_tokens", "20")
LENGTH = "eval/mine/T1/response_length"


def steps_and_evals(lines):
    taken = ("seconds", "memory", "tokens_per_s", "time")
    steps = [
        {key: value for key, value in line["metrics"].items() if not any(t in key for t in taken)}
        for line in lines
        if "metrics" in line
    ]
    return steps, [line["eval"] for line in lines if "eval" in line]


@pytest.fixture
def as_trained(train):
    """The steps and evaluations of a run whose evaluations are sampled as training is."""
    return steps_and_evals(train("as_trained", *EVALUATED))


def test_longer_answers_of_evaluations_leave_training_as_it_is(train, as_trained):
    steps, evals = steps_and_evals(train("long", *EVALUATED, *LONG))

    assert steps == as_trained[0]
    assert all(each[LENGTH] <= 4 for each in as_trained[1])
    assert all(4 < each[LENGTH] <= 20 for each in evals)


def test_sequences_of_evaluations_may_be_longer_where_those_of_training_have_a_limit(train):
    limited = (*EVALUATED, *LONG, "--rollout.max_length", "12")

    assert train("short", *limited, code=2) == []
    _, evals = steps_and_evals(train("long", *limited, "--eval.max_length", "28"))

    assert all(4 < each[LENGTH] <= 20 for each in evals)


def test_one_most_probable_token_is_the_greedy_answer_at_any_temperature(train, workspace):
    def answers(output, *flags):
        train(output, *EVALUATED[:2], *flags)
        lines = (workspace / output / "eval_samples.jsonl").read_text().splitlines()
        return [line["response"] for line in map(json.loads, lines)]

    greedy = answers("greedy")

    assert len(greedy) > 4
    assert answers("one", *EVALUATED[2:], "--eval.top_k", "1") == greedy
    assert answers("all", *EVALUATED[2:]) != greedy
