"""2 000 episodes whose environments hang, raise, die or answer with nonsense: none is lost, none counts twice."""

import asyncio
import random
from collections import Counter

import numpy as np
import pytest
from tests.chaos import PROMPTS, SAMPLES, STEPS, play

from rlhf_core.contracts import Observation, StepResult
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import MultiTurn

MODES = (
    "well",
    "well",
    "raises",
    "exits",
    "hangs",
    "cancels itself",
    "nonsense",
    "nan",
    "cannot close",
    "unmade",
)


class Chaotic:
    """Plays three turns without waiting, if it is well; else something goes wrong in reset or in one of its steps.

    What it does never waits, so that only an environment that hangs can be too late, however slow the machine is.
    """

    made: Counter[str]
    closed: list[object]

    def __init__(self, number):
        self.draw = random.Random(number)
        self.mode = self.draw.choice(MODES)
        self.when = self.draw.randrange(-1, 3)
        type(self).made[self.mode] += 1
        if self.mode == "unmade":
            raise OSError("no port left")

    async def reset(self, task, seed):
        if self.when < 0:
            await self.go_wrong()
        return Observation()

    async def step(self, action):
        if action.turn == self.when and (wrong := await self.go_wrong()) is not None:
            return wrong
        return StepResult(observation=Observation(text="go on"), reward=1.0, done=action.turn == 2)

    async def go_wrong(self):
        match self.mode:
            case "raises":
                raise ZeroDivisionError("division by zero")
            case "exits":
                raise SystemExit(1)
            case "hangs":
                await asyncio.Event().wait()
            case "cancels itself":
                raise asyncio.CancelledError
            case "nonsense":
                return self.draw.choice([False, "done", {"reward": 1}, StepResult(rewards=3)])
            case "nan":
                return StepResult(reward=float("nan"))

    async def close(self):
        self.closed.append(self)
        if self.mode == "cannot close":
            raise OSError("busy")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["drop", "value"])
def test_no_episode_is_lost_or_counts_twice_whatever_environments_do(policy, tmp_path):
    environment = type("ChaoticEnvironment", (Chaotic,), {"made": Counter(), "closed": []})

    numbers = iter(range(10**6))
    executor = MultiTurn(MultiTurnConfig(on_error=policy, environment_timeout_s=0.5))

    taken, balance = play(
        executor,
        tmp_path / "ledger.jsonl",
        lambda task: environment(next(numbers)),
        no_task_left=True,
    )

    assert balance.unsettled() == []
    assert sum(balance.planned.values()) == PROMPTS * SAMPLES * STEPS == 2000
    trained = [uid for step in taken for uid in step.batch.uids()]
    assert len(trained) == len(set(trained)) == sum(balance.trained.values())
    dropped = sum(balance.dropped.values())
    assert len(trained) + dropped == 2000
    assert dropped == sum(map(left_out, taken))
    # Every environment that was made is closed, once.
    assert environment.made.total() == 2000
    assert (
        len({*environment.closed}) == len(environment.closed) == 2000 - environment.made["unmade"]
    )
    # Whoever was well is in the batch, with all that it earned.
    rewards = np.concatenate([step.batch.total_reward for step in taken])
    assert (rewards == 3.0).sum() == sum(map(plays_well, environment.closed))
    ended = sum(np.sum(step.batch.metrics["end/environment_error"]) for step in taken)
    assert (ended > 0) == (policy == "value")


def left_out(rollouts):
    """Episodes of a step that were left out, with those of groups of which none is left."""
    counted = {name: metric.value() for name, metric in rollouts.metrics.items()}
    alone = counted["filter/dropped_episodes/environment_failed"]
    return alone + SAMPLES * counted.get("filter/dropped_groups/environment_failed", 0)


def plays_well(environment):
    """Whether neither reset nor a step of it fails. What is wrong with a result is wrong with that of a step."""
    in_reset = environment.when < 0
    return environment.mode in ("well", "cannot close", *(("nonsense", "nan") if in_reset else ()))
