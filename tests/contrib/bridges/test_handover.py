"""A rollout that asks, played in turns."""

import asyncio

import pytest

from rlhf_bridge_verifiers.handover import Handover, Stopped, plain
from rlhf_core import RolloutError
from rlhf_core.contracts import Action, Stop
from rlhf_testing.errors import has_code


def say(text, turn=0):
    return Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn)


def user(text):
    return {"role": "user", "content": text}


def test_only_what_is_new_is_asked_and_the_outcome_comes_last():
    async def rollout(ask):
        talk = [user("a")]
        first = await ask(talk)
        talk += [{"role": "assistant", "content": first.text}, user("b"), user("c")]
        second = await ask(talk)
        return first.text + second.text

    async def run():
        handover = Handover(rollout)
        questions = [await handover.question()]
        for word in "xy":
            handover.answer(say(word))
            questions.append(await handover.question())
        return questions, handover.outcome

    assert asyncio.run(run()) == ([[user("a")], [user("b"), user("c")], None], "xy")


@pytest.mark.parametrize(
    "second", [[user("z"), {"role": "assistant", "content": "x"}, user("b")], [user("a")], []]
)
def test_a_conversation_that_is_rewritten_is_refused(second):
    async def rollout(ask):
        await ask([user("a")])
        await ask(second)

    async def run():
        handover = Handover(rollout)
        await handover.question()
        handover.answer(say("x"))
        await handover.question()

    with pytest.raises(RolloutError, check=has_code("environment/rewrote-history")):
        asyncio.run(run())


def test_an_error_of_the_rollout_is_the_questions_and_closing_cancels_it():
    async def fails(ask):
        raise ValueError("no data")

    ended = []

    async def waits(ask):
        try:
            await ask([user("a")])
        finally:
            ended.append(True)

    async def run():
        with pytest.raises(ValueError, match="no data"):
            await Handover(fails).question()
        handover = Handover(waits)
        await handover.question()
        await handover.close()

    asyncio.run(run())
    assert ended == [True]


def test_two_questions_at_once_are_refused():
    async def rollout(ask):
        await asyncio.gather(ask([user("a")]), ask([user("b")]))

    async def run():
        handover = Handover(rollout)
        assert await handover.question() == [user("a")]
        await handover.question()

    with pytest.raises(RolloutError, check=has_code("environment/two-questions")):
        asyncio.run(run())


def test_a_rollout_whose_policy_stops_may_end_in_its_own_way():
    refusals = []

    async def rollout(ask):
        for _ in range(2):
            try:
                await ask([user("a")])
            except Stopped:
                refusals.append("stopped")
        return "scored"

    async def run():
        handover = Handover(rollout)
        await handover.question()
        handover.stop()
        assert await handover.question() is None
        return handover.outcome

    assert asyncio.run(run()) == "scored"
    assert refusals == ["stopped", "stopped"]


def test_text_in_parts_is_joined_and_images_are_refused():
    text = {"type": "text", "text": "a"}

    assert plain({"role": "user", "content": [text, text]}) == user("aa")
    with pytest.raises(RolloutError, check=has_code("environment/shows-no-text")):
        plain({"role": "user", "content": [text, {"type": "image_url"}]})
