"""Episodes of the executor ``endpoint`` in front of a fake engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core.contracts import RolloutContext, SamplingParams, Task, Trajectory, Uid
from rlhf_core.rng import seed_of
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.executor import Endpoint
from rlhf_testing.fakes import FakeEngine, FakeRenderer

RENDERER = FakeRenderer()
TASK = Task(
    uid=Uid(0, 3),
    prompt_ids=tuple(RENDERER.encode("[user]question|[assistant]")),
    messages=({"role": "user", "content": "question"},),
    row={"answer": "42"},
)


class EpisodePlayer:
    """Plays agents, and keeps the engine for looking at it afterwards."""

    def __init__(self, folder: Path) -> None:
        self.engine = FakeEngine()
        self.renderer = RENDERER
        self.task = TASK
        self._folder = folder

    def context(self, *, max_length: int = 2000, **sampling: object) -> RolloutContext:
        """What the executor works with."""
        return RolloutContext(
            engine=self.engine,
            renderer=RENDERER,
            sampling=replace(SamplingParams(max_new_tokens=64), **sampling),
            max_length=max_length,
            seed=lambda sample, turn: seed_of(7, "sample", 0, 3, sample, turn),
        )

    def __call__(
        self, agent: Callable | str, *, samples=(0,), context=None, **options
    ) -> list[Trajectory]:
        """Return the trajectories of an agent's episodes."""
        name = agent if isinstance(agent, str) else f"{_module_with(agent)}:agent"
        endpoint = Endpoint(EndpointConfig(agent=name, **options))
        return asyncio.run(endpoint.run(self.task, list(samples), context or self.context()))

    def script(self, text: str) -> str:
        """Write a program for a command, and return its path."""
        path = self._folder / "program.py"
        path.write_text(text)
        return str(path)


def _module_with(agent: Callable) -> str:
    """The name of a module in which the agent is ``agent``."""
    module = type(sys)("agent_of_a_test")
    module.agent = agent
    sys.modules[module.__name__] = module
    return module.__name__


@pytest.fixture
def play(tmp_path: Path) -> EpisodePlayer:
    return EpisodePlayer(tmp_path)
