"""The executor ``endpoint``, in whose episodes an agent asks the policy over HTTP.

- Each episode has an address and a key of its own. The agent is a function, a coroutine or a command; whatever client
  it uses, what trains are the tokens that the engine read and wrote.
- All episodes of a group get the same agent seed, ``context.seed(0, -1)``.
- The server runs while episodes do, on the loop of the executor: it is opened by the first and closed by the last.
- An agent that raises, dies or tells no outcome fails the run, or costs what ``on_error`` says. One that is out of
  requests, tokens or context and raises for it has ended its episode; so has one that is out of time.
- Metrics: ``turns``, ``finished``, ``end/*``, those of the graph, of the endpoint, and of the agent as ``agent/*``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rlhf_core import EnvironmentFailure, first_error
from rlhf_core.contracts import EpisodeEnd, RolloutContext, Task, Trajectory, Uid
from rlhf_episodes import EpisodeGraph

from .agents.command import CommandAgent, with_whole_paths
from .agents.context import AgentContext
from .agents.function import FunctionAgent, load_function
from .agents.outcome import AgentFailure, AgentOutcome
from .agents.prompt import as_sent, text_in
from .config import EndpointConfig
from .episode.crediting import credit
from .episode.session import EpisodeSession
from .fork_watch import ForkWatch
from .host import EndpointHost, EpisodeAddress
from .settings import http_limits, route_options, session_limits
from .traces import trace_from_graph, write_traces

DROPPED = "agent_error"
"""Reason for which an episode is left out of its group."""

log = logging.getLogger(__name__)


class Endpoint:
    """Runs the agents of a group at the same time.

    Raises:
        ConfigError: the agent's function cannot be loaded.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        if config.trace_folder is not None:
            config.trace_folder.mkdir(parents=True, exist_ok=True)
        self._function = None if config.command else load_function(config.agent)
        self._host: EndpointHost | None = None
        self._agent: FunctionAgent | CommandAgent
        self._num_groups = 0
        self._forks = ForkWatch()
        self._has_told_unrewarded = False
        self._opening = asyncio.Lock()
        self._slots: asyncio.Semaphore

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return the trajectories of the samples, one or several for each.

        Raises:
            EnvironmentFailure: an agent failed; the other episodes were cancelled.
            RolloutError: the engine failed.
        """
        async with self._open() as host:
            try:
                async with asyncio.TaskGroup() as group:
                    episodes = [
                        group.create_task(self._episode(host, task, sample, context))
                        for sample in samples
                    ]
            except ExceptionGroup as errors:
                raise first_error(errors) from errors
        return [row for episode in episodes for row in episode.result()]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[EndpointHost]:
        """Open the server for the first group that runs, and close it after the last."""
        async with self._opening:
            if self._host is None:
                host = EndpointHost(http_limits(self._config), route_options(self._config))
                await host.start()
                self._host = host
                self._slots = asyncio.Semaphore(self._config.max_episodes)
                self._agent = self._make_agent()
            self._num_groups += 1
        try:
            yield self._host
        finally:
            self._num_groups -= 1
            if not self._num_groups:
                host, self._host = self._host, None
                await host.close()
                await self._agent.close()

    def _make_agent(self) -> FunctionAgent | CommandAgent:
        if self._function is not None:
            return FunctionAgent(self._function)
        return CommandAgent(
            with_whole_paths(self._config.command),
            self._config.pass_env,
            says_outcome=self._config.reward_from == "agent",
        )

    async def _episode(
        self, host: EndpointHost, task: Task, sample: int, context: RolloutContext
    ) -> list[Trajectory]:
        uid = task.uid._replace(sample=sample)
        async with self._slots:
            session = EpisodeSession(uid, task, context, session_limits(self._config))
            failure: AgentFailure | None = None
            raised = ""
            outcome = AgentOutcome()
            try:
                with host.hosting(session) as address:
                    agent_context = self._context(uid, task, context, address)
                    async with asyncio.timeout(self._config.episode_timeout_s):
                        end, outcome = await _until_broken(self._agent.play(agent_context), session)
                if end is EpisodeEnd.FINISHED:
                    self._check(outcome)
            except AgentFailure as error:
                end = session.limit_hit or EpisodeEnd.ENVIRONMENT_ERROR
                failure, raised = (error, "") if session.limit_hit is None else (None, str(error))
            except TimeoutError:
                end = EpisodeEnd.TIMEOUT
            finally:
                graph = await session.end()
        self._forks.add(uid, session.forks, len(graph.nodes))
        if not graph.nodes and failure is None:
            what = "never got an answer" if session.refusals.count else "never asked the policy"
            failure = AgentFailure(f"{what} (it ended by {end})")
        has_actions = any(node.learned.any() for node in graph.nodes)
        if failure is None and not has_actions:
            failure = AgentFailure(
                f"left nothing to train on: every token of its {len(graph.nodes)} answers was decided by temperature 0 "
                "or by the form that it asked for"
            )
        if failure is None:
            failure = _credited(graph, session, outcome)
        if failure is not None:
            problem = self._error(uid, failure, session)
            if self._config.on_error == "fail":
                raise problem from failure
            log.warning("%s", problem)
            if self._config.on_error == "drop" or not has_actions:
                context.drop(uid, DROPPED)
                return []
            outcome = AgentOutcome(rewards={"agent": self._config.error_reward})
        elif end is not EpisodeEnd.FINISHED:
            self._tell_unrewarded(uid, end, raised, session)
        if self._config.trace_folder is not None:
            write_traces(self._config.trace_folder / f"{uid}.jsonl", [trace_from_graph(graph)])
        metrics = {
            **{f"agent/{name}": value for name, value in outcome.metrics.items()},
            **graph.metrics(),
            **session.metrics(),
            **{f"end/{each}": float(each is end) for each in EpisodeEnd},
            "turns": float(len(graph.nodes)),
            "finished": float(end is EpisodeEnd.FINISHED),
        }
        return graph.trajectories(metrics=metrics, rewards=outcome.rewards)

    def _context(
        self, uid: Uid, task: Task, context: RolloutContext, address: EpisodeAddress
    ) -> AgentContext:
        if task.messages:
            prompt = text_in(task.messages[-1])
        else:
            prompt = context.renderer.decode(task.prompt_ids, skip_special_tokens=True)
        return AgentContext(
            base_url=address.base_url,
            root_url=address.root_url,
            api_key=address.api_key,
            model=self._config.models[0],
            row=task.row,
            messages=as_sent(task.messages, context.images),
            prompt=prompt,
            seed=context.seed(0, -1),
            uid=str(uid),
        )

    def _check(self, outcome: AgentOutcome) -> None:
        if self._config.reward_from == "agent" and not outcome.has_reward:
            raise AgentFailure(
                "returned no reward; expected a number, or a mapping with reward or rewards. If --reward judges its "
                "episodes, set --rollout.endpoint.reward_from rewards"
            )

    def _tell_unrewarded(
        self, uid: Uid, end: EpisodeEnd, raised: str, session: EpisodeSession
    ) -> None:
        """Warn once of an agent that returned no outcome because its episode was out of requests, context or time."""
        if self._config.reward_from != "agent" or self._has_told_unrewarded:
            return
        self._has_told_unrewarded = True
        what = f"the agent {raised}" if raised else "the agent did not return"
        refused = str(session.refusals)
        log.warning(
            "endpoint: episode %s ended by %s before its agent had an outcome (%s%s). Such episodes train with the "
            "reward 0; rollout/end/%s is their share. To reward them, have the agent catch what its client raises, and "
            "return an outcome; or raise the limit.",
            uid,
            end,
            what,
            refused and f"; {refused}",
            end,
        )

    def _error(self, uid: Uid, error: AgentFailure, session: EpisodeSession) -> EnvironmentFailure:
        command = self._config.command
        name = command[0] if command else self._config.agent
        refused = str(session.refusals)
        return EnvironmentFailure(
            f"{uid}: the agent {name} {error}" + (refused and f"; {refused}"), code="agent/failed"
        )


def _credited(
    graph: EpisodeGraph, session: EpisodeSession, outcome: AgentOutcome
) -> AgentFailure | None:
    """Give requests and agents what the outcome says that they earned; return what is wrong with it."""
    try:
        credit(graph, session.replies(), outcome)
    except AgentFailure as failure:
        return failure
    return None


async def _until_broken(
    playing: Coroutine[Any, Any, AgentOutcome], session: EpisodeSession
) -> tuple[EpisodeEnd, AgentOutcome]:
    """Return the agent's outcome, or end it once the engine answers no more.

    Raises:
        AgentFailure: the agent raised, or died.
        RLHFError: the engine failed.
    """
    agent = asyncio.ensure_future(playing)
    try:
        both: set[asyncio.Future[Any]] = {agent, session.broken}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if session.broken.done():
            return session.broken.result(), AgentOutcome()
        return EpisodeEnd.FINISHED, agent.result()
    finally:
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
