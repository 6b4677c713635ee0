"""Choosing from completions, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_core.outside.json_reader import parse_form
from rlhf_plugin_inference.generate.options import SelectOptions
from rlhf_plugin_inference.generate.records import AnsweredPrompt, ScoredAnswer
from rlhf_plugin_inference.generate.selecting import LeftOut, best, pairs, rejection


def answer(text, reward, stop="eos"):
    return ScoredAnswer(text=text, tokens=3, stop=stop, logprob=-1.0, seed=0, reward=reward)


def prompt(*answers, messages=None):
    return AnsweredPrompt(
        index=4, dataset="d", prompt="p", messages=messages, prompt_tokens=1, completions=answers
    )


FOUR = prompt(answer("a", 0.5), answer("b", 2.0), answer("c", -1.0), answer("d", 2.0))


def test_best_takes_the_highest_reward_and_of_equal_ones_the_first():
    expected = {"prompt": "p", "response": "b", "reward": 2.0, "index": 4}

    assert best(FOUR, SelectOptions()) == [expected]


def test_chosen_rows_of_a_chat_keep_the_variables_of_its_template():
    said = {"role": "user", "content": "p"}
    asked = replace(
        prompt(answer("a", 1.0), answer("b", 2.0), messages=(said,)),
        chat_template_kwargs={"thinking": False},
    )

    for choose in (best, pairs):
        (row,) = choose(parse_form(asked.to_line(), AnsweredPrompt), SelectOptions())
        assert row["prompt"] == [said]
        assert row["chat_template_kwargs"] == {"thinking": False}


def test_best_takes_nothing_below_the_threshold():
    assert best(FOUR, SelectOptions(threshold=2.5)) == LeftOut("below the threshold")
    assert best(FOUR, SelectOptions(threshold=2.0))[0]["response"] == "b"


def test_rejection_takes_all_that_reach_the_threshold_in_order():
    rows = rejection(FOUR, SelectOptions(threshold=0.5))

    assert [row["response"] for row in rows] == ["a", "b", "d"]
    assert rejection(FOUR, SelectOptions(threshold=3.0)) == LeftOut("below the threshold")


def test_pairs_take_the_best_and_the_worst():
    expected = {"prompt": "p", "chosen": "b", "rejected": "c", "margin": 3.0, "index": 4}

    assert pairs(FOUR, SelectOptions()) == [expected]


def test_equal_rewards_give_no_pair():
    assert pairs(prompt(answer("a", 1.0), answer("b", 1.0)), SelectOptions()) == LeftOut(
        "equal rewards"
    )


def test_one_completion_gives_no_pair():
    left_out = LeftOut("fewer than two completions to choose from")

    assert pairs(prompt(answer("a", 1.0)), SelectOptions()) == left_out
    assert pairs(prompt(answer("a", 1.0), answer("a", 0.0)), SelectOptions()) == left_out


def test_a_text_that_comes_twice_is_chosen_once():
    twice = prompt(answer("a", 1.0), answer("a", 1.0), answer("b", 1.0))

    assert [row["response"] for row in rejection(twice, SelectOptions(threshold=1.0))] == ["a", "b"]


@pytest.mark.parametrize(
    "useless",
    [
        answer("z", None),
        answer(" \n", 9.0),
        answer("", 9.0),
        answer("z\0", 9.0),
        answer("z", 9.0, "length"),
    ],
    ids=["unscored", "blank", "empty", "NUL", "cut off"],
)
def test_what_cannot_be_learned_from_is_not_chosen(useless):
    assert best(prompt(useless, answer("a", 1.0)), SelectOptions())[0]["response"] == "a"
    assert best(prompt(useless), SelectOptions()) == LeftOut("no completion to choose from")


def test_a_cut_off_completion_is_chosen_where_the_options_say_so():
    rows = best(prompt(answer("z", 9.0, "length"), answer("a", 1.0)), SelectOptions(truncated=True))

    assert rows[0]["response"] == "z"


def test_a_chats_row_has_its_messages():
    messages = ({"role": "user", "content": "p"},)

    (row,) = best(prompt(answer("a", 1.0), messages=messages), SelectOptions())

    assert row["prompt"] == [{"role": "user", "content": "p"}]
