"""The environment alone, without a model."""

import asyncio
from itertools import islice

import pytest

from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_env_guess_number.environment import GuessNumber, GuessNumberConfig

TEN = {"low": 0, "high": 9, "guesses": 4, "style": "text"}


def play(answers, *, secret=7, seed=0, **options):
    """First observation and results of an episode in which the policy writes ``answers``."""
    row = {} if secret is None else {"secret": secret}

    async def episode():
        environment = GuessNumber(GuessNumberConfig(**{**TEN, **options}))
        first = await environment.reset(Task(uid=Uid(0, 0), row=row), seed)
        results = []
        for turn, text in enumerate(answers):
            action = Action(text=str(text), token_ids=(), stop=Stop.EOS, turn=turn)
            results.append(await environment.step(action))
        await environment.close()
        return first, results

    return asyncio.run(episode())


def earned(result):
    return result.reward + sum(result.rewards.values())


def test_hints_lead_to_the_number():
    first, results = play([4, 8, 7])

    assert first.text == "?"
    assert [result.observation.text for result in results] == [">", "<", None]
    assert [result.done for result in results] == [False, False, True]
    assert [earned(result) for result in results] == [0.0, 0.0, 1.0]
    assert results[-1].metrics == {"guesses": 3.0, "found": 1.0}


@pytest.mark.parametrize("secret", range(10))
def test_halving_finds_every_number(secret):
    low, high, guesses = 0, 9, []
    while not guesses or guesses[-1] != secret:
        guesses.append((low + high) // 2)
        low, high = (guesses[-1] + 1, high) if guesses[-1] < secret else (low, guesses[-1] - 1)

    assert earned(play(guesses, secret=secret)[1][-1]) == 1.0


def test_the_last_guess_ends_the_episode():
    _, results = play([0, 1, 2, 3])

    assert [result.done for result in results] == [False, False, False, True]
    assert sum(map(earned, results)) == 0.0
    assert results[-1].metrics == {"guesses": 4.0, "found": 0.0}


@pytest.mark.parametrize("text", ["", "x", "10", "-1", "9" * 5000, "³", "??"])
def test_an_answer_without_a_number_within_the_bounds_costs_a_little(text):
    _, (result,) = play([text])

    assert earned(result) == -0.1
    assert result.observation.text == "!"
    assert not result.done


def test_the_last_number_of_a_text_is_the_guess():
    assert earned(play(["between 3 and 9, so 7."])[1][0]) == 1.0


def test_a_chat_says_the_bounds():
    first, (result,) = play([50], secret=70, style="chat", high=99, guesses=7)

    assert first.messages[0]["content"] == "Guess the number from 0 to 99. You have 7 guesses."
    assert result.observation.messages == ({"role": "user", "content": "higher"},)


def test_without_a_task_the_secret_is_a_function_of_the_seed():
    def found(seed):
        return next(n for n in range(10) if earned(play([n], secret=None, seed=seed)[1][0]) == 1)

    assert [found(seed) for seed in range(50)] == [found(seed) for seed in range(50)]
    assert {found(seed) for seed in range(200)} == set(range(10))


def test_tasks_are_the_same_each_time_and_cover_the_numbers():
    environment = GuessNumber(GuessNumberConfig(**TEN))
    train = list(islice(environment.tasks("train"), 500))

    assert train == list(islice(environment.tasks("train"), 500))
    assert {row["secret"] for row in train} == set(range(10))
    assert [row["secret"] for row in environment.tasks("eval")] == list(range(10))
    assert len({row["key"] for row in train}) == 500
    with pytest.raises(KeyError):
        environment.tasks("test")


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ValueError, match="low below high"):
        GuessNumberConfig(low=5, high=5)


def test_the_oracle_finds_the_number_at_once():
    async def episode():
        environment = GuessNumber(GuessNumberConfig(**TEN))
        await environment.reset(Task(uid=Uid(0, 0), row={"secret": 7}), 0)
        return await environment.oracle()

    assert asyncio.run(episode()) == "7"
