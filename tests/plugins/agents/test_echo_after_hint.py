import asyncio
import re
from collections import Counter

import pytest

from rlhf_core.contracts import Action, Stop, Task, Uid
from rlhf_plugin_agents.config import EchoAfterHintConfig, MultiTurnConfig
from rlhf_plugin_agents.echo_after_hint import EchoAfterHint
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_testing.fakes import FakeEngine

EMPTY = Task(uid=Uid(0, 0))


def play(texts, *, seed=0, task=EMPTY, **config):
    """Return (first observation, the results) of an episode in which the policy writes ``texts``."""

    async def episode():
        environment = EchoAfterHint(EchoAfterHintConfig(**config))
        first = await environment.reset(task, seed)
        results = [
            await environment.step(Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn))
            for turn, text in enumerate(texts)
        ]
        await environment.close()
        return first, results

    return asyncio.run(episode())


def hint_of(result):
    return int(re.fullmatch(r"hint:(\d)=", result.observation.text)[1])


def test_the_hint_is_a_function_of_the_seed_and_takes_every_value():
    hints = [hint_of(play(["x"], seed=seed)[1][0]) for seed in range(200)]

    assert hints == [hint_of(play(["x"], seed=seed)[1][0]) for seed in range(200)]
    # 200 draws of 4: 50 each, standard deviation 6.
    assert all(25 < count < 75 for count in Counter(hints).values())
    assert set(hints) == {0, 1, 2, 3}


@pytest.mark.parametrize("offset", [0, 3])
def test_the_right_digit_in_turn_two_gives_one_and_ends(offset):
    _, (first,) = play(["anything"], offset=offset)
    answer = (hint_of(first) + offset) % 4

    _, (first, second) = play(["anything", f" {answer} and more"], offset=offset)

    assert (first.reward, first.done) == (0.0, False)
    assert (second.reward, second.done, second.metrics) == (1.0, True, {"right": 1.0})


@pytest.mark.parametrize(("text", "reward"), [("", 0.0), ("x", 0.0), ("9", 0.1), ("³", 0.0)])
def test_wrong_answers_give_little_or_nothing(text, reward):
    _, (_, second) = play(["", text])

    assert second.reward == reward
    assert second.metrics == {"right": 0.0}


def test_the_task_s_prompt_comes_first_if_there_is_one():
    assert play([])[0].text == "?"
    assert play([], task=Task(uid=Uid(0, 0), prompt_ids=(5,)))[0].text is None


def test_the_reward_lands_on_the_second_turn(stage):
    def read_the_hint(request, index):
        found = re.search(r"hint:(\d)=$", stage.renderer.decode(request.prompt_ids))
        return found[1] if found else "hm"

    stage.engine = FakeEngine(read_the_hint)
    context = stage.context(lambda: EchoAfterHint(EchoAfterHintConfig()))

    episodes = asyncio.run(MultiTurn(MultiTurnConfig()).run(EMPTY, range(3), context))

    for one in episodes:
        assert [turn.reward for turn in one.turns] == [0.0, 1.0]
        assert (one.metrics["turns"], one.metrics["end/finished"]) == (2.0, 1.0)
        assert one.metrics["env/right"] == 1.0
    # One group, one hint.
    assert len({tuple(one.token_ids.tolist()) for one in episodes}) == 1
