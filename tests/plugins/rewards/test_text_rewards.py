import json
from datetime import date
from decimal import Decimal

import numpy as np
import pytest
from pydantic import ValidationError

from rlhf_core import RewardError
from rlhf_testing.errors import has_code


@pytest.mark.parametrize(
    ("response", "answer", "options", "expected"),
    [
        ("42", "42", {}, 1.0),
        (" 42\n", "42", {}, 1.0),
        (" 42", "42", {"strip": False}, 0.0),
        ("42", 42, {}, 1.0),
        ("43", "42", {}, 0.0),
        ("Paris", "paris", {}, 0.0),
        ("Paris", "paris", {"lowercase": True}, 1.0),
        ("Straße", "STRASSE", {"lowercase": True}, 1.0),
        ("a city", ["town", "a city"], {}, 1.0),
        ("", "", {}, 1.0),
        ("4", ["4", None], {}, 1.0),
        ("0.10", Decimal("0.10"), {}, 1.0),
        ("2024-05-01", date(2024, 5, 1), {}, 1.0),
        ("0.5", np.float32(0.5), {}, 1.0),
        ("True", np.bool_(True), {}, 1.0),
        ("10", np.int64(10), {}, 1.0),
        ("10", 10.0, {}, 1.0),
        ("10.0", 10.0, {}, 1.0),
        ("10", 10.5, {}, 0.0),
        ("[1, 2]", "[1, 2]", {}, 1.0),
        ("{1, 2}", "{1, 2}", {}, 1.0),
        ("the answer is 3, no: 42.", "42", {"extract": r"\d+"}, 1.0),
        ("<a>1</a> <a> 42 </a>", "42", {"extract": r"<a>(.*?)</a>"}, 1.0),
        ("no number", "42", {"extract": r"\d+"}, 0.0),
        ("(x)", "", {"extract": r"(y)?\(x\)"}, 0.0),
    ],
)
def test_exact_match(one, request_for, response, answer, options, expected):
    assert one("exact_match", request_for(response, answer=answer), **options).reward == expected


def test_exact_match_tells_whether_something_was_extracted(one, request_for):
    options = {"extract": r"\d+", "label_key": "label"}

    assert one("exact_match", request_for("a 1", label=2), **options).metrics == {"extracted": 1.0}
    assert one("exact_match", request_for("a", label=2), **options).metrics == {"extracted": 0.0}
    assert one("exact_match", request_for("a", label=2), label_key="label").metrics == {}


VERL = {"reward_model": {"style": "rule", "ground_truth": "2"}}
"""Columns of a row as verl's scripts write them, with the right answer in an object."""


@pytest.mark.parametrize("name", ["exact_match", "math"])
def test_a_label_may_stand_in_an_object_of_the_row(one, request_for, name):
    inside = {"label_key": "reward_model.ground_truth"}

    assert one(name, request_for("2", **VERL), **inside).reward == 1.0
    assert one(name, request_for("3", **VERL), **inside).reward == 0.0
    whole = {"reward_model.ground_truth": "3"}  # as the method ``flatten`` of datasets names it
    assert one(name, request_for("3", **VERL, **whole), **inside).reward == 1.0


@pytest.mark.parametrize("name", ["exact_match", "math"])
@pytest.mark.parametrize("key", ["reward_model.answer", "reward_model.style.name", "task.answer"])
def test_a_label_that_is_not_in_the_object_names_the_columns(one, request_for, name, key):
    with pytest.raises(
        RewardError, match=f"'{key}'.*reward_model", check=has_code("data/missing-column")
    ):
        one(name, request_for("2", **VERL), label_key=key)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("ground_truth", "reward_model.ground_truth"),
        ("reward_modl.groundtruth", "reward_model.ground_truth"),
        ("answr", "answer"),
    ],
)
def test_a_label_that_is_not_there_names_one_that_can_be_read(one, request_for, key, meant):
    with pytest.raises(RewardError, check=has_code("data/missing-column")) as caught:
        one("exact_match", request_for("2", **VERL, answer="2"), label_key=key)

    assert str(caught.value).endswith(
        f"Did you mean {meant!r}? Columns: reward_model, reward_model.style, reward_model.ground_truth, answer"
    )
    with pytest.raises(RewardError, check=has_code("data/missing-column")) as caught:
        one("exact_match", request_for("2", **VERL), label_key="reward_model.answer")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["exact_match", "math"])
@pytest.mark.parametrize(
    "label",
    [
        VERL["reward_model"],
        [VERL["reward_model"]],
        [["2"]],
        [],
        [None, None],
        {"2"},
        b"2",
        float("nan"),
        np.float32("inf"),
        Decimal("NaN"),
        json.dumps(VERL["reward_model"]),
    ],
)
def test_a_label_that_no_response_can_be_is_refused(one, request_for, name, label):
    """Its text would be compared, which no response ever is, so each would get 0."""
    with pytest.raises(RewardError, match="'answer'", check=has_code("reward/unusable-label")):
        one(name, request_for("2", answer=label))


def test_a_call_of_a_tool_may_be_the_right_answer(one, request_for):
    call = json.dumps({"name": "add", "arguments": {"a": 1}})

    assert one("exact_match", request_for(call, answer=call)).reward == 1.0


@pytest.mark.parametrize("name", ["exact_match", "math"])
@pytest.mark.parametrize("first", ["rule", {"of": "rules"}])
def test_a_label_that_is_an_object_names_what_is_in_it(one, request_for, name, first):
    row = {"reward_model": {"style": first, "ground_truth": "2"}}
    said = rf"--reward\.{name}\.label_key reward_model\.ground_truth$"
    with pytest.raises(RewardError, match=said, check=has_code("reward/unusable-label")):
        one(name, request_for("2", **row), label_key="reward_model")


@pytest.mark.parametrize("name", ["exact_match", "math"])
@pytest.mark.parametrize("label", [[{"a": "2"}], {"a": {"b": "2"}}])
def test_an_entry_that_cannot_be_read_is_not_offered(one, request_for, name, label):
    with pytest.raises(RewardError, check=has_code("reward/unusable-label")) as caught:
        one(name, request_for("2", answer=label))

    assert "label_key" not in str(caught.value)


@pytest.mark.parametrize("name", ["exact_match", "math"])
def test_a_missing_label_names_the_columns(one, request_for, name):
    with pytest.raises(
        RewardError,
        match=r"'answer'.*mean 'answers'\? Columns: answers",
        check=has_code("data/missing-column"),
    ):
        one(name, request_for("1", answers="1"))
    with pytest.raises(RewardError, match="'answer'", check=has_code("reward/empty-label")):
        one(name, request_for("1", answer=None))


@pytest.mark.parametrize("name", ["exact_match", "math"])
def test_a_missing_label_concerns_its_sample_alone(results, request_for, name):
    bad, good = results(name, [request_for("1"), request_for("1", answer="1")])

    assert isinstance(bad, RewardError)
    assert good.reward == 1.0


@pytest.mark.parametrize(
    ("response", "options", "expected"),
    [
        ("say yes", {"pattern": "yes|no"}, 1.0),
        ("say yes", {"pattern": "yes|no", "mode": "full"}, 0.0),
        ("yes", {"pattern": "yes|no", "mode": "full"}, 1.0),
        ("YES", {"pattern": "yes"}, 0.0),
        ("YES", {"pattern": "yes", "ignore_case": True}, 1.0),
        ("aaa", {"pattern": "^a{3}$"}, 1.0),
        ("it is 1+1", {"pattern": "is {answer}$", "columns": True}, 1.0),
        ("it is 111", {"pattern": "is {answer}$", "columns": True}, 0.0),
        ("x 1+1", {"pattern": r"x{{1}} {answer}", "columns": True}, 1.0),
        ("it is 1+1", {"pattern": "is {task.answer}$", "columns": True}, 1.0),
        ("it is 111", {"pattern": "is {task.answer}$", "columns": True}, 0.0),
        ("it is 1+", {"pattern": "is {answer[0]}{answer[1]}$", "columns": True}, 1.0),
    ],
)
def test_regex(one, request_for, response, options, expected):
    row = {"answer": "1+1", "task": {"answer": "1+1"}}

    assert one("regex", request_for(response, **row), **options).reward == expected


@pytest.mark.parametrize(
    ("response", "label", "expected"),
    [
        ("it is 3", 3.0, 1.0),
        ("it is 3.0", 3.0, 1.0),
        ("it is -3", -3.0, 1.0),
        ("it is 3", 3.5, 0.0),
    ],
)
def test_a_whole_number_of_a_float_column_is_written_either_way(
    one, request_for, response, label, expected
):
    request = request_for(response, answer=label)

    assert one("regex", request, pattern="is {answer}$", columns=True).reward == expected


@pytest.mark.parametrize("label", [None, float("nan")])
def test_a_pattern_is_not_filled_with_the_word_for_no_value(one, request_for, label):
    with pytest.raises(RewardError, check=has_code("reward/empty-label")):
        one("regex", request_for("None", answer=label), pattern="{answer}", columns=True)


def test_a_pattern_that_backtracks_for_ever_is_given_up(one, request_for):
    with pytest.raises(
        RewardError, match=r"match_timeout_s = 0\.05", check=has_code("reward/slow-pattern")
    ):
        one("regex", request_for("a" * 40 + "!"), pattern=r"(a|aa|b?)+$", match_timeout_s=0.05)


@pytest.mark.parametrize(
    ("pattern", "text", "code"),
    [
        (
            "{label}",
            "names 'label' in braces, which is no column; columns: answer",
            "reward/pattern-of-no-column",
        ),
        ("a{2", "cannot be filled", "reward/braces-of-pattern"),
        ("{answer.x}", "cannot be filled", "reward/braces-of-pattern"),
        ("({answer}", "is not a regular expression", "reward/malformed-pattern"),
    ],
)
def test_a_pattern_that_the_row_cannot_fill_is_told(one, request_for, pattern, text, code):
    with pytest.raises(RewardError, match=text, check=has_code(code)):
        one("regex", request_for(answer="1"), pattern=pattern, columns=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [("regex", {"pattern": "(a"}), ("regex", {"pattern": ""}), ("exact_match", {"extract": "*"})],
)
def test_an_invalid_expression_is_found_with_the_options(reward, name, options):
    with pytest.raises(ValidationError):
        reward(name, **options)


@pytest.mark.parametrize(
    ("response", "answer", "expected", "extracted"),
    [
        (r"so \boxed{0.5}", "1/2", 1.0, 1.0),
        (r"so \boxed{\frac12}", "0.5", 1.0, 1.0),
        (r"\boxed{1+x^2}", "$x^2+1$", 1.0, 1.0),
        (r"\boxed{x}", "x", 1.0, 1.0),
        (r"\boxed{(1,2)}", "(1,2)", 1.0, 1.0),
        ("first 41, then 42", 42, 1.0, 1.0),
        ("42 it is not, but 41", "42", 0.0, 1.0),
        ("1234", "1,234", 1.0, 1.0),
        (r"\boxed{4} and 3", "3", 0.0, 1.0),
        ("I do not know", "42", 0.0, 0.0),
        ("", "42", 0.0, 0.0),
        ("3 \ud800", "3", 1.0, 1.0),
        (r"\boxed{41} wait, no: \boxed{42}", "42", 1.0, 1.0),
        (r"\boxed{41} wait, no: \boxed{42}", "41", 0.0, 1.0),
        (r"\boxed{41} wait, no: \boxed{42}", r"$\{41, 42\}$", 0.0, 1.0),
        (r"$\boxed{1}$ and $\boxed{2}$", r"$\{1, 2\}$", 1.0, 1.0),
        (r"\boxed{42}. I was to write it into \boxed{}.", "42", 1.0, 1.0),
        (r"\boxed{42}", r"it is \boxed{40}, or rather, as seen above, \boxed{42}", 1.0, 1.0),
    ],
)
def test_math(one, request_for, response, answer, expected, extracted):
    result = one("math", request_for(response, answer=answer))

    assert result.reward == expected
    assert result.metrics == {"extracted": extracted, "timed_out": 0.0}


@pytest.mark.parametrize(
    ("response", "options", "expected", "extracted"),
    [
        ("it is 42", {"only_boxed": True}, 0.0, 0.0),
        ("it is $42$", {"only_boxed": True}, 0.0, 0.0),
        (r"it is \boxed{42", {"only_boxed": True}, 0.0, 0.0),
        (r"it is \boxed{42}, not 41", {"only_boxed": True}, 1.0, 1.0),
        ("41? <t>42", {"answer_after": "<t>"}, 1.0, 1.0),
        (r"\boxed{42} <t> done", {"answer_after": "<t>"}, 0.0, 0.0),
        (r"\boxed{42}, still thinking", {"answer_after": "<t>"}, 0.0, 0.0),
        (r"<t>\boxed{42}<t>\boxed{41}", {"answer_after": "<t>"}, 0.0, 1.0),
        (r"\boxed{41}<t>42", {"answer_after": "<t>", "only_boxed": True}, 0.0, 0.0),
        (r"\boxed{41}<t>\boxed{42}", {"answer_after": "<t>", "only_boxed": True}, 1.0, 1.0),
    ],
)
def test_math_counts_only_what_stands_where_the_answer_has_to(
    one, request_for, response, options, expected, extracted
):
    result = one("math", request_for(response, answer="42"), **options)

    assert (result.reward, result.metrics["extracted"]) == (expected, extracted)


def test_math_refuses_a_label_that_is_no_expression(one, request_for):
    with pytest.raises(
        RewardError, match="the label '' in column 'answer'", check=has_code("reward/no-expression")
    ):
        one("math", request_for("1", answer=""))


def test_math_gives_up_on_a_comparison_that_takes_for_ever(one, request_for):
    result = one("math", request_for(r"\boxed{9^{9^{9^9}}}", answer="1000000"), step_timeout_s=1)

    assert result.reward == 0.0
    assert result.metrics == {"extracted": 1.0, "timed_out": 1.0}


def test_math_says_that_a_comparison_without_a_result_failed(one, request_for):
    with pytest.raises(
        RewardError, match=r"step_timeout_s = 0\.5", check=has_code("reward/slow-response")
    ):
        one(
            "math",
            request_for(r"\boxed{9^{9^{9^9}}}", answer="1000000"),
            step_timeout_s=0.5,
            on_timeout="error",
        )


def test_math_tells_of_a_label_that_takes_for_ever_to_read(one, request_for):
    long = "+".join(str(number) for number in range(10_000))

    with pytest.raises(
        RewardError, match=r"step_timeout_s = 0\.01", check=has_code("reward/slow-label")
    ):
        one("math", request_for("1", answer=long), step_timeout_s=0.01)


def test_math_counts_a_time_out_of_a_run(panel_scores, request_for):
    requests = [
        request_for(r"\boxed{9^{9^{9^9}}}", 0, answer="1000000"),
        request_for("1", 1, answer="1"),
    ]

    scores = panel_scores({"step_timeout_s": 0.5}, requests, component="math")

    assert [one.metrics["mine/timed_out"] for one in scores] == [1.0, 0.0]
    assert [one.reward for one in scores] == [0.0, 1.0]


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("isolate", [False, True])
def test_math_works_in_a_worker_s_main_thread_and_in_a_thread(panel_scores, request_for, isolate):
    requests = [request_for(r"\boxed{0.5}", 0, answer="1/2"), request_for("3", 1, answer="4")]

    scores = panel_scores({}, requests, component="math", isolate=isolate)

    assert [one.reward for one in scores] == [1.0, 0.0]
