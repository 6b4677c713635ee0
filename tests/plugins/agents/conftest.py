import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from rlhf_core.contracts import (
    Action,
    Environment,
    Observation,
    RolloutContext,
    SamplingParams,
    StepResult,
    Task,
    Uid,
)
from rlhf_core.rng import seed_of
from rlhf_testing.fakes import FakeEngine, FakeRenderer

RENDERER = FakeRenderer()


class CountingEnvironment:
    """Answers each turn with ``<n>`` and gives it the reward n; done after ``length`` turns. Keeps a diary."""

    def __init__(
        self,
        length: int = 3,
        *,
        first: Observation | None = None,
        answer: Callable[[Action], Observation] | None = None,
    ) -> None:
        self.length = length
        self.first = first or Observation()
        self.answer = answer or (lambda action: Observation(text=f"<{action.turn}>"))
        self.actions: list[Action] = []
        self.seed: int | None = None
        self.closed = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self.seed = seed
        return self.first

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(0)
        self.actions.append(action)
        return StepResult(
            observation=self.answer(action),
            reward=float(action.turn),
            done=len(self.actions) == self.length,
            metrics={"steps": len(self.actions)},
        )

    async def close(self) -> None:
        self.closed += 1


class Stage:
    """An engine and the environments that an executor made, for looking at afterwards."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.dropped: dict[Uid, str] = {}
        self.made: list[Environment] = []
        self.renderer = RENDERER

    def context(
        self,
        make: Callable[[], Environment] | None = None,
        *,
        max_length: int = 1000,
        more: dict[str, object] | None = None,
        **sampling: object,
    ) -> RolloutContext:
        def make_and_keep(task: Task) -> Environment:
            assert make is not None
            self.made.append(make())
            return self.made[-1]

        return RolloutContext(
            engine=self.engine,
            renderer=(more or {}).pop("renderer", RENDERER),
            sampling=replace(SamplingParams(max_new_tokens=64), **sampling),
            max_length=max_length,
            seed=lambda sample, turn: seed_of(7, "sample", 0, 3, sample, turn),
            environment=None if make is None else make_and_keep,
            drop=self.dropped.__setitem__,
            **(more or {}),
        )


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def task() -> Task:
    return Task(uid=Uid(0, 3), prompt_ids=tuple(RENDERER.encode("question")), row={"answer": "42"})


@pytest.fixture
def counting() -> type[CountingEnvironment]:
    return CountingEnvironment
