"""The adapter of this package's own endpoint: a server on a loop of its own thread, one episode at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from rlhf_core.contracts import (
    Completion,
    GenerationRequest,
    RolloutContext,
    SamplingParams,
    Task,
    Trajectory,
    Uid,
)

from ..agents.function import LoopThread
from ..config import COMMAND, EndpointConfig
from ..episode.session import EpisodeSession
from ..host import EndpointHost, EpisodeAddress
from ..settings import http_limits, route_options, session_limits
from .adapter import CapturedRow, CapturedTrace
from .chat_format import KitRenderer
from .policy import ScriptedPolicy

POLL_S = 0.01
"""Seconds between two looks at an event that answers wait for."""
CLOSE_S = 30.0
"""Seconds for one thing that the loop is asked to do."""


class OwnEndpoint:
    """The endpoint of this package, for ``run_scenarios``."""

    temperature = 1.0

    @property
    def name(self) -> str:
        """Name and version."""
        return f"rlhf-plugin-endpoint {version('rlhf-plugin-endpoint')}"

    @contextmanager
    def episode(self, policy: ScriptedPolicy) -> Iterator[OwnEpisode]:
        """Open an episode, with a server of its own."""
        loop, config = LoopThread(), EndpointConfig(agent=COMMAND, command=("true",))
        try:
            hosted = loop.start(_Hosted.open(config, policy)).result(CLOSE_S)
            try:
                yield OwnEpisode(loop, hosted)
            finally:
                loop.start(hosted.close()).result(CLOSE_S)
        finally:
            loop.close()


class OwnEpisode:
    """An open episode."""

    def __init__(self, loop: LoopThread, hosted: _Hosted) -> None:
        self._loop, self._hosted = loop, hosted
        self.root_url = hosted.address.root_url
        self.api_key = hosted.address.api_key
        self.model = "policy"

    def finish(self) -> CapturedTrace:
        """Return what trains of the episode."""
        rows = self._loop.start(self._hosted.trajectories()).result(CLOSE_S)
        return CapturedTrace(rows=tuple(map(_row, rows)), num_paths=len(rows))


def _row(trajectory: Trajectory) -> CapturedRow:
    return CapturedRow(
        token_ids=tuple(trajectory.token_ids.tolist()),
        mask=tuple(trajectory.action_mask.tolist()),
        logprobs=tuple(trajectory.rollout_logprobs.tolist()),
        versions=tuple(trajectory.weight_version.tolist()),
    )


@dataclass(slots=True)
class _Hosted:
    """One session and the server in front of it. Everything runs on the server's loop."""

    host: EndpointHost
    session: EpisodeSession
    address: EpisodeAddress
    hosting: Any

    @classmethod
    async def open(cls, config: EndpointConfig, policy: ScriptedPolicy) -> _Hosted:
        host = EndpointHost(http_limits(config), route_options(config))
        await host.start()
        context = RolloutContext(
            engine=_PolicyEngine(policy),
            renderer=KitRenderer(),
            sampling=SamplingParams(temperature=OwnEndpoint.temperature, max_new_tokens=10_000),
            max_length=100_000,
            seed=lambda sample, turn: turn,
        )
        uid = Uid(0, 0)
        session = EpisodeSession(uid, Task(uid=uid), context, session_limits(config))
        hosting = host.hosting(session)
        return cls(host, session, hosting.__enter__(), hosting)

    async def trajectories(self) -> list[Trajectory]:
        return (await self.session.end()).trajectories()

    async def close(self) -> None:
        self.hosting.__exit__(None, None, None)
        await self.session.end()
        await self.host.close()


class _PolicyEngine:
    """``Generator`` of a scripted policy."""

    def __init__(self, policy: ScriptedPolicy) -> None:
        self._policy = policy

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, after the policy's delay."""
        self._policy.started.set()
        while not self._policy.let_go.is_set():
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(self._policy.delay_s)
        return [self._sample(request) for _ in request.seeds]

    def _sample(self, request: GenerationRequest) -> Completion:
        answer = self._policy.sample(
            request.prompt_ids,
            max_new_tokens=request.sampling.max_new_tokens,
            stop=request.sampling.stop,
            temperature=request.sampling.temperature,
        )
        return Completion(
            token_ids=np.array(answer.token_ids, dtype=np.int32),
            logprobs=np.array(answer.logprobs, dtype=np.float32),
            weight_version=np.array(answer.versions, dtype=np.int32),
            stop=answer.stop,
        )
