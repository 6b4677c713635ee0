"""The environment alone, without a model."""

import asyncio
from itertools import combinations, islice, permutations

import pytest

from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_env_sorting.environment import Sorting, SortingConfig, inversions, is_held_out

THREE = {"length": 3, "style": "text"}


def play(answers, *, digits="312", seed=0, **options):
    """First observation and results of an episode in which the policy writes ``answers``."""
    row = {} if digits is None else {"digits": digits}

    async def episode():
        environment = Sorting(SortingConfig(**{**THREE, **options}))
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


def test_two_swaps_sort_what_has_two_inversions():
    first, results = play([1, 2])

    assert first.text == "312:"
    assert [result.observation.text for result in results] == ["132:", None]
    assert [result.done for result in results] == [False, True]
    # 312 has the inversions 31 and 32, and each swap takes one away.
    assert results[0].rewards == {"order": 0.5}
    assert results[1].rewards == {"order": 0.5, "sorted": 1.0}
    assert results[1].metrics == {"sorted": 1.0, "inversions": 0.0, "moves": 2.0}


@pytest.mark.parametrize("digits", ["".join(map(str, one)) for one in permutations((1, 4, 8, 9))])
def test_the_oracle_needs_as_many_swaps_as_there_are_inversions(digits):
    async def episode():
        environment = Sorting(SortingConfig(length=4, style="text"))
        await environment.reset(Task(uid=Uid(0, 0), row={"digits": digits}), 0)
        used = 0
        while True:
            text = await environment.oracle()
            used += 1
            action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=used)
            if (await environment.step(action)).metrics["sorted"]:
                return used

    wanted = inversions(list(map(int, digits)))
    if wanted:
        assert asyncio.run(episode()) == wanted


def test_swapping_to_and_fro_earns_nothing():
    _, results = play([1, 1], digits="321")

    assert sum(map(earned, results)) == pytest.approx(0.0)


def test_the_last_move_ends_the_episode():
    _, results = play([1, 1, 1], digits="321")

    assert [result.done for result in results] == [False, False, True]
    assert results[-1].metrics == {"sorted": 0.0, "inversions": 2.0, "moves": 3.0}


@pytest.mark.parametrize("text", ["", "x", "0", "3", "-1", "9" * 5000, "³", ":"])
def test_an_answer_that_is_no_place_changes_nothing_and_costs_a_little(text):
    _, (result,) = play([text])

    assert result.rewards == {"order": 0.0, "no_move": -0.1}
    assert result.observation.text == "!312:"
    assert not result.done


def test_the_last_number_of_a_text_is_the_place():
    assert play(["3 is above 1, so 1."])[1][0].observation.text == "132:"


def test_a_chat_says_the_rules():
    first, (result, missed) = play([1, "no"], digits="3124", style="chat", length=4)

    assert first.messages[0]["content"] == (
        "Sort 3 1 2 4 in 6 swaps at most. Say the place of the left one of two neighbors, 1 to 3, and they are swapped."
    )
    assert result.observation.messages == ({"role": "user", "content": "1 3 2 4"},)
    assert "a place from 1 to 3" in missed.observation.messages[0]["content"]


def test_without_a_task_the_digits_are_a_function_of_the_seed():
    shown = [play([], digits=None, seed=seed)[0].text for seed in range(50)]

    assert shown == [play([], digits=None, seed=seed)[0].text for seed in range(50)]
    assert len(set(shown)) > 40


@pytest.mark.parametrize("length", [3, 4, 10])
def test_tasks_are_the_same_each_time_and_none_is_in_both_splits(length):
    environment = Sorting(SortingConfig(length=length))
    train, held_out = (list(islice(environment.tasks(one), 400)) for one in ("train", "eval"))

    assert train == list(islice(environment.tasks("train"), 400))
    assert len(held_out) == len({row["digits"] for row in held_out}) > 40
    assert not {row["digits"] for row in train} & {row["digits"] for row in held_out}
    assert len({row["key"] for row in train}) == 400
    for row in train:
        digits = list(map(int, row["digits"]))
        assert len(set(digits)) == length
        assert any(left > right for left, right in combinations(digits, 2))
        assert not is_held_out(digits)
    with pytest.raises(KeyError):
        environment.tasks("test")


def test_rewards_stay_within_what_the_manifest_says():
    low, high = Sorting.manifest.reward_range
    for answers in ([1] * 6, [3] * 6, ["x"] * 6, [2, 1, 3, 2, 1, 3]):
        _, results = play(answers, digits="2143", length=4)
        assert low <= sum(map(earned, results)) <= high
