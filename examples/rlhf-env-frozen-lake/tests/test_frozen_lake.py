"""The environment alone, without a model."""

import asyncio

import pytest

from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_env_frozen_lake.config import FrozenLakeConfig
from rlhf_env_frozen_lake.environment import FrozenLake
from rlhf_env_frozen_lake.lakes import way

LAKE = ["SFF", "FHF", "FFG"]


def play(answers, *, lake=LAKE, seed=0, **options):
    row = {} if lake is None else {"lake": lake}

    async def episode():
        environment = FrozenLake(FrozenLakeConfig(**options))
        first = await environment.reset(Task(uid=Uid(0, 0), row=row), seed)
        results = []
        for turn, text in enumerate(answers):
            action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn)
            results.append(await environment.step(action))
        await environment.close()
        return first, results

    return asyncio.run(episode())


def text(observation):
    return observation.messages[0]["content"]


def earned(result):
    return result.reward + sum(result.rewards.values())


def test_a_way_around_the_hole_reaches_the_goal():
    first, results = play([f"<move>{move}</move>" for move in ("down", "down", "right", "right")])

    assert text(first).endswith("PFF\nFHF\nFFG")
    assert text(results[0].observation) == "SFF\nPHF\nFFG"
    assert [earned(result) for result in results] == [0, 0, 0, 1]
    assert [result.done for result in results] == [False, False, False, True]
    assert results[-1].metrics == {"moves": 4.0, "goal": 1.0, "fell": 0.0}


def test_a_hole_ends_the_episode():
    _, results = play(["right", "down"])

    assert results[-1].done
    assert earned(results[-1]) == 0.0
    assert results[-1].metrics["fell"] == 1.0


def test_the_edge_holds_and_moves_run_out():
    _, results = play(["up", "left", "up"], moves=3)

    assert text(results[1].observation) == "PFF\nFHF\nFFG"
    assert [result.done for result in results] == [False, False, True]


@pytest.mark.parametrize("answer", ["", "I wait", "<move>north</move>", "<move>", "x" * 10**6])
def test_an_answer_without_a_direction_costs_a_little_and_a_move(answer):
    _, (result, moved) = play([answer, "<move> DOWN </move>"])

    assert earned(result) == -0.05
    assert text(moved.observation) == "SFF\nPHF\nFFG"
    assert moved.metrics["moves"] == 2.0


def test_the_last_direction_of_an_answer_counts():
    _, (result,) = play(["<move>right</move> falls later; <move>down</move>"])

    assert text(result.observation) == "SFF\nPHF\nFFG"


def test_the_place_alone_is_shown_where_the_option_says_so():
    _, (result,) = play(["down"], show_map=False)

    assert text(result.observation) == "You are in row 2, column 1."


def test_slipping_is_a_function_of_the_seed():
    open_ice = ["SFFF", "FFFF", "FFFF", "FFFG"]

    def maps(seed):
        results = play(["down"] * 6, lake=open_ice, slippery=True, seed=seed)[1]
        return [text(result.observation) for result in results]

    assert maps(1) == maps(1)
    assert len({tuple(maps(seed)) for seed in range(10)}) > 1


def test_every_lake_can_be_crossed():
    tasks = FrozenLake(FrozenLakeConfig()).tasks("eval")

    for row in map(tasks.__getitem__, range(20)):
        moves = way(row["lake"])
        results = play(moves, lake=row["lake"])[1]
        assert earned(results[-1]) == 1.0


def test_a_lake_without_a_way_has_none():
    assert way(["SH", "HG"]) is None
    assert way(["SF", "HG"]) == ["right", "down"]


def test_splits_are_disjoint_and_the_same_each_time():
    environment = FrozenLake(FrozenLakeConfig(size=5))
    train, held_out = (
        {tuple(environment.tasks(split)[n]["lake"]) for n in range(100)}
        for split in ("train", "eval")
    )

    assert train & held_out == set()
    again = FrozenLake(FrozenLakeConfig(size=5)).tasks("train")
    assert [again[n] for n in range(20)] == [environment.tasks("train")[n] for n in range(20)]
    with pytest.raises(KeyError):
        environment.tasks("test")


def test_without_a_task_the_lake_is_a_function_of_the_seed():
    assert play([], lake=None, seed=3)[0] == play([], lake=None, seed=3)[0]
    assert play([], lake=None, seed=3)[0] != play([], lake=None, seed=4)[0]


def test_the_oracle_crosses_the_lake():
    async def episode(row):
        environment = FrozenLake(FrozenLakeConfig())
        await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        done, total, turn = False, 0.0, 0
        while not done:
            said = await environment.oracle()
            result = await environment.step(
                Action(text=said, token_ids=(), stop=Stop.EOS, turn=turn)
            )
            done, total, turn = result.done, total + earned(result), turn + 1
        await environment.close()
        return total

    tasks = FrozenLake(FrozenLakeConfig()).tasks("train")
    assert {asyncio.run(episode(tasks[n])) for n in range(20)} == {1.0}


def test_a_line_and_letters_play_the_same_game():
    first, results = play(list("ddrr"), style="text")

    assert first.text == "PFF/FHF/FFG:"
    assert results[0].observation.text == "SFF/PHF/FFG:"
    assert [earned(result) for result in results] == [0, 0, 0, 1]


@pytest.mark.parametrize("answer", ["x", "", "D"])
def test_another_letter_is_no_direction(answer):
    _, (result,) = play([answer], style="text")

    assert earned(result) == -0.05
    assert result.observation.text == "?:"


def test_the_place_in_a_line():
    _, (result,) = play(["d"], style="text", show_map=False)

    assert result.observation.text == "2,1:"
