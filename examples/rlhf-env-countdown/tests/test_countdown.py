"""The environment alone, without a model."""

import asyncio

import pytest

from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_env_countdown.environment import Countdown, CountdownConfig
from rlhf_env_countdown.expressions import parse

ROW = {"numbers": [3, 7, 25, 2], "target": 54}


def play(answers, *, row=ROW, seed=0, **options):
    async def episode():
        environment = Countdown(CountdownConfig(**options))
        first = await environment.reset(Task(uid=Uid(0, 0), row=row), seed)
        results = []
        for turn, text in enumerate(answers):
            action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn)
            results.append(await environment.step(action))
        await environment.close()
        return first, results

    return asyncio.run(episode())


def earned(result):
    return result.reward + sum(result.rewards.values())


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("<answer>(25 - 7) * 3</answer>", 1.1),
        ("25 + 7 = 32? No. <answer>1</answer> rather <answer>(25-7)*3</answer>.", 1.1),
        ("<answer>25 + 7</answer>", 0.1),
        ("(25 - 7) * 3", 0.0),
        ("<answer>54</answer>", 0.0),
        ("<answer>(25 - 7) * 3 + 2 - 2</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("</answer><answer>", 0.0),
        ("<answer>" * 10_000, 0.0),
    ],
)
def test_the_reward_is_for_the_target_and_for_the_numbers(answer, reward):
    _, (result,) = play([answer])

    assert earned(result) == pytest.approx(reward)
    assert result.done
    assert result.metrics["solved"] == float(reward > 1)


def test_a_number_given_twice_may_be_used_twice():
    row = {"numbers": [5, 5, 2], "target": 25}

    assert earned(play(["<answer>5 * 5</answer>"], row=row)[1][0]) == 1.1
    assert earned(play(["<answer>5 * 5</answer>"], row={**row, "numbers": [5, 2]})[1][0]) == 0.0


def test_every_number_has_to_be_used_where_the_option_says_so():
    (result,) = play(["<answer>(25 - 7) * 3</answer>"], all_numbers=True)[1]

    assert earned(result) == 0.0
    assert result.observation.messages[0]["content"].startswith(
        "That is no answer: not every number"
    )


def test_a_wrong_answer_is_told_its_value_and_may_be_replaced():
    _, (first, second) = play(["<answer>25 / 7</answer>", "<answer>(25-7)*3</answer>"], attempts=2)

    assert not first.done
    assert earned(first) == 0.0
    assert first.observation.messages[0]["content"] == "That is 25/7, not 54. Try again."
    assert earned(second) == 1.1
    assert second.metrics == {"attempts": 2.0, "solved": 1.0}


def test_the_question_has_the_numbers_and_not_the_solution():
    row = Countdown(CountdownConfig()).tasks("train")[0]
    first, _ = play([], row=row)
    text = first.messages[0]["content"]

    assert all(str(number) in text for number in row["numbers"])
    assert str(row["target"]) in text
    assert row["solution"] not in text
    assert play([], style="text")[0].text == "3 7 25 2>54:"


@pytest.mark.parametrize("split", ["train", "eval"])
def test_every_problem_has_a_solution_of_all_its_numbers(split):
    tasks = Countdown(CountdownConfig()).tasks(split)

    for index in range(0, len(tasks), len(tasks) // 100):
        row = tasks[index]
        solved = parse(row["solution"])
        assert solved.value == row["target"]
        assert sorted(solved.numbers) == sorted(row["numbers"])
        answer = f"<answer>{row['solution']}</answer>"
        assert earned(play([answer], row=row, all_numbers=True)[1][0]) == 1.1


def test_splits_are_disjoint_and_the_same_each_time():
    environment = Countdown(CountdownConfig(numbers=3, largest=9))
    found = {
        split: {
            (tuple(sorted(row["numbers"])), row["target"])
            for row in map(tasks.__getitem__, range(256))
        }
        for split, tasks in (
            ("train", environment.tasks("train")),
            ("eval", environment.tasks("eval")),
        )
    }

    assert found["train"] & found["eval"] == set()
    assert len(found["train"]) > 200
    again = Countdown(CountdownConfig(numbers=3, largest=9)).tasks("train")
    assert [again[n] for n in range(20)] == [environment.tasks("train")[n] for n in range(20)]
    with pytest.raises(KeyError):
        environment.tasks("test")


def test_without_a_task_the_problem_is_a_function_of_the_seed():
    first, _ = play([], row={}, seed=3)

    assert first == play([], row={}, seed=3)[0]
    assert first != play([], row={}, seed=4)[0]


def test_the_oracle_has_the_solution():
    async def episode(row):
        environment = Countdown(CountdownConfig())
        await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        text = await environment.oracle()
        return await environment.step(Action(text=text, token_ids=(), stop=Stop.EOS, turn=0))

    tasks = Countdown(CountdownConfig()).tasks("eval")
    assert {earned(asyncio.run(episode(tasks[n]))) for n in range(20)} == {1.1}
