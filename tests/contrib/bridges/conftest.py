"""Episodes of bridges without a run."""

import asyncio

import pytest

from rlhf_core.contracts import Action, Stop, Task, Uid


@pytest.fixture
def played():
    """``played(environment, words, seed=0, **row)``: what is seen at first, and the result of each word."""

    async def episode(environment, words, seed, row):
        try:
            seen = await environment.reset(Task(uid=Uid(0, 0), row=row), seed)
            results = []
            for turn, word in enumerate(words):
                text = (
                    word(seen if not results else results[-1].observation)
                    if callable(word)
                    else word
                )
                action = Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn)
                results.append(await environment.step(action))
                if results[-1].done:
                    break
        finally:
            await environment.close()
        return seen, results

    def play(environment, words, seed=0, **row):
        return asyncio.run(episode(environment, words, seed, row))

    return play
