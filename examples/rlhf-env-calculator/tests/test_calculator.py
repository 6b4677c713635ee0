"""The environment alone, without a model."""

import asyncio
import json

import pytest

from rlhf_core.contracts import Action, Stop, Task, ToolCall, Uid
from rlhf_env_calculator.config import CalculatorConfig
from rlhf_env_calculator.environment import Calculator

ROW = {"problem": "37 * 52", "answer": "1924"}


def call(left, operator, right):
    arguments = json.dumps({"left": left, "operator": operator, "right": right})
    return ToolCall(name="calculate", arguments=arguments, id="c")


def play(turns, *, row=ROW, seed=0, **options):
    """First observation and results; a turn is a text, or a call."""

    async def episode():
        environment = Calculator(CalculatorConfig(**options))
        first = await environment.reset(Task(uid=Uid(0, 0), row=row), seed)
        results = []
        for index, turn in enumerate(turns):
            said = {"text": turn} if isinstance(turn, str) else {"text": "", "tool_calls": (turn,)}
            action = Action(token_ids=(), stop=Stop.EOS, turn=index, **said)
            results.append(await environment.step(action))
        await environment.close()
        return first, results

    return asyncio.run(episode())


def earned(results):
    return [round(result.reward + sum(result.rewards.values()), 6) for result in results]


def test_a_call_and_its_result_are_the_way_to_the_reward():
    first, (called, answered) = play([call(37, "*", 52), "1924"])

    assert first.messages[0]["content"].startswith("What is 37 * 52?")
    assert first.tools[0]["function"]["parameters"]["properties"]["operator"]["enum"] == [
        "+",
        "-",
        "*",
    ]
    assert called.observation.messages[0]["content"] == "1924"
    assert earned([called, answered]) == [0.1, 1.0]
    assert answered.done
    assert answered.metrics["tools/calls"] == 1.0


def test_a_right_answer_without_a_call_earns_nothing_unless_the_option_says_so():
    assert earned(play(["1924"])[1]) == [0.0]
    assert earned(play(["1924"], must_call=False)[1]) == [1.0]


def test_more_calls_earn_no_more():
    _, results = play([call(1, "+", 1), call(2, "+", 2), call(37, "*", 52), "so it is 1,924"])

    assert earned(results) == [0.1, 0.0, 0.0, 1.0]


def test_a_call_that_fails_is_no_call():
    _, (failed, answered) = play([call("many", "*", 52), "1924"])

    assert failed.observation.messages[0]["content"].startswith("error (invalid_arguments): left")
    assert earned([failed, answered]) == [0.0, 0.0]


def test_numbers_that_are_too_long_are_refused():
    _, (failed,) = play([call(10**200, "*", 10**200)])

    assert failed.observation.messages[0]["content"].startswith(
        "error (failed): expected numbers of"
    )


def test_calls_run_out():
    _, results = play([call(1, "+", 1)] * 3, calls=2)

    assert "used up" in results[2].observation.messages[0]["content"]


@pytest.mark.parametrize("answer", ["", "1925", "1924 or 7", "x" * 10**6, "١٩٢٤"])
def test_other_answers_earn_nothing_more(answer):
    assert earned(play([call(37, "*", 52), answer])[1]) == [0.1, 0.0]


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ({"problem": "(3 - 5) * 4", "answer": "-8"}, "-8"),
        ({"problem": "0 * 9", "answer": "0"}, "0"),
    ],
)
def test_signs_count(row, value):
    assert earned(play([call(1, "+", 1), value], row=row)[1]) == [0.1, 1.0]


def test_problems_are_computed_from_left_to_right():
    tasks = Calculator(CalculatorConfig(numbers=3, digits=2)).tasks("train")

    for row in map(tasks.__getitem__, range(200)):
        inner, _, last = row["problem"].rpartition(") ")
        left, first, right = inner.removeprefix("(").split(" ")
        second, number = last.split(" ")
        compute = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
        between = compute[first](int(left), int(right))
        assert compute[second](between, int(number)) == int(row["answer"])


def test_splits_are_disjoint_and_the_same_each_time():
    environment = Calculator(CalculatorConfig(digits=2))
    train, held_out = (
        {environment.tasks(split)[n]["problem"] for n in range(256)} for split in ("train", "eval")
    )

    assert train & held_out == set()
    again = Calculator(CalculatorConfig(digits=2)).tasks("train")
    assert [again[n] for n in range(20)] == [environment.tasks("train")[n] for n in range(20)]
    with pytest.raises(KeyError):
        environment.tasks("test")


def test_a_tiny_model_reads_a_short_question():
    assert play([], style="text")[0].messages[0]["content"] == "37*52"


@pytest.mark.parametrize("numbers", [2, 4])
def test_the_oracle_calls_until_it_knows_the_answer(numbers):
    async def episode(row):
        environment = Calculator(CalculatorConfig(numbers=numbers))
        await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        results = []
        while not results or not results[-1].done:
            said = await environment.oracle()
            turn = {"text": said} if isinstance(said, str) else {"text": "", "tool_calls": said}
            action = Action(token_ids=(), stop=Stop.EOS, turn=len(results), **turn)
            results.append(await environment.step(action))
        return results

    tasks = Calculator(CalculatorConfig(numbers=numbers)).tasks("train")
    for row in map(tasks.__getitem__, range(20)):
        found = earned(asyncio.run(episode(row)))
        assert len(found) == numbers
        assert sum(found) == 1.1
