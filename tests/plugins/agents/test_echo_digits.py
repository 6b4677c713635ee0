"""The toy of credit: the same rewards for the same answers, by turn or all at the end."""

import asyncio

import pytest

from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_plugin_agents.config import EchoDigitsConfig
from rlhf_plugin_agents.echo_digits import EchoDigits


def play(texts, *, seed=0, **config):
    """Return the digits that were shown, and the results. A text of ``None`` echoes the digit."""

    async def episode():
        environment = EchoDigits(EchoDigitsConfig(num_turns=len(texts), **config))
        shown = [await environment.reset(Task(uid=Uid(0, 0)), seed)]
        results = []
        for turn, text in enumerate(texts):
            written = shown[-1].text.removesuffix("=") if text is None else text
            action = Action(text=written, token_ids=(5,), stop=Stop.EOS, turn=turn)
            results.append(await environment.step(action))
            shown.append(results[-1].observation)
        await environment.close()
        return [one.text for one in shown if one.text], results

    return asyncio.run(episode())


def test_each_turn_earns_its_part_and_another_digit_a_tenth_of_it():
    """Four turns: right, another digit, no digit, right with more behind it."""
    _, results = play([None, "9", "x", None])

    assert [result.reward for result in results] == pytest.approx([0.25, 0.025, 0.0, 0.25])
    assert [result.done for result in results] == [False, False, False, True]
    assert results[-1].metrics == {"right": 0.5}


def test_credit_at_the_end_is_the_same_sum_on_the_last_turn():
    by_turn = [result.reward for result in play([None, "9", "x", None])[1]]
    at_end = [result.reward for result in play([None, "9", "x", None], credit="end")[1]]

    assert at_end[:-1] == [0.0, 0.0, 0.0]
    assert at_end[-1] == pytest.approx(sum(by_turn))


def test_the_digits_are_a_function_of_the_seed():
    shown = {seed: tuple(play(["x"] * 6, seed=seed)[0]) for seed in range(20)}

    assert shown == {seed: tuple(play(["x"] * 6, seed=seed)[0]) for seed in range(20)}
    assert len(set(shown.values())) > 15
    assert {digit for digits in shown.values() for digit in digits} == {"0=", "1=", "2=", "3="}
