import asyncio
from dataclasses import replace

import pytest

from rlhf_core.config.resolved import RewardOptions, Selection
from rlhf_core.contracts import RewardRequest, Turn
from rlhf_core.plugins import load
from rlhf_core.rewards.panel import RewardPanel

REQUEST = RewardRequest(
    uid="0.0.0.0",
    row={},
    prompt="p",
    response="r",
    token_ids=(1, 2, 3),
    action_mask=(False, True, True),
    turns=(Turn(start=1, end=3),),
    truncated=False,
)


@pytest.fixture(scope="session")
def plugins():
    return load("")


@pytest.fixture
def request_for():
    """``request_for(response, index, **row)``: one finished sample."""

    def make(response="r", index=0, **row):
        return replace(REQUEST, uid=f"0.{index}.0.0", response=response, row=row)

    return make


@pytest.fixture
def reward(plugins):
    """``reward(name, **options)``: the component itself, as a worker builds it."""

    def build(name, **options):
        registered = plugins.get("rlhf_rewards", name)
        return registered.build(registered.validate(options))

    return build


@pytest.fixture
def results(reward):
    """``results(name, requests, **options)``: what the component returns."""

    def run(name, requests, **options):
        return asyncio.run(reward(name, **options).score(requests))

    return run


@pytest.fixture
def panel_scores(plugins):
    """``panel_scores(options, requests, **reward_options)``: scores of a function, the way that a run gets them.

    Of the last of ``times`` calls.
    """

    def run(options, requests, *, component="function", times=1, **reward_options):
        registered = plugins.get("rlhf_rewards", component)
        selection = Selection(
            slot="reward.use",
            section="reward.mine",
            registered=registered,
            options=registered.validate(options),
            reward=RewardOptions(**reward_options),
        )

        async def all_of_it():
            panel = RewardPanel([selection])
            await panel.start()
            try:
                for _ in range(times):
                    scores = await panel.score(requests)
                return scores
            finally:
                await panel.close()

        return asyncio.run(all_of_it())

    return run
