"""Parts of a process that runs episodes, built from the names and values that it was sent.

A runtime that has such processes calls ``open_rollouts`` and ``open_rewards`` in each, with the process's own plugins,
and gives the results to a ``GroupRunner``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from rlhf_core.batch.task import Task
from rlhf_core.contracts import Generator, Renderer, RolloutContext, RolloutExecutor
from rlhf_core.contracts.engine import SamplingParams
from rlhf_core.contracts.executor import FinishedGroup, GroupSettings
from rlhf_core.contracts.reward import RewardRequest
from rlhf_core.contracts.runtime import RolloutSpec
from rlhf_core.media.reader import ImageReader
from rlhf_core.plugins import Plugins
from rlhf_data.chat.template_kwargs import renderer_of as renderer_of
from rlhf_guard.environments.chosen import Environments, open_environments
from rlhf_guard.environments.chosen import label_of as label_of
from rlhf_guard.parts import NamedExecutor

if TYPE_CHECKING:
    from rlhf_guard.rewards.panel import RewardPanel, SampleScore

    Requests = Sequence[RewardRequest]
    Scores = Sequence[SampleScore]


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """Parts that turn a task into trajectories, the engine excepted."""

    executor: RolloutExecutor
    renderer: Renderer
    environment: Environments | None
    """Makes a fresh environment for a task; None when the run has none."""
    images: ImageReader | None = None
    """Takes images of observations in; None: the policy reads text alone."""

    def context(
        self, engine: Generator, sampling: SamplingParams, max_length: int
    ) -> RolloutContext:
        """Return what episodes are given, but for the seeds, which the episode runner gives for each task."""
        return RolloutContext(
            engine=engine,
            renderer=self.renderer,
            sampling=sampling,
            max_length=max_length,
            seed=_no_seed,
            environment=self.environment,
            environment_label=partial(label_of, self.environment),
            images=self.images,
        )


def open_rollouts(spec: RolloutSpec, plugins: Plugins) -> RolloutParts:
    """Build the executor and the renderer, and return them with a function that makes environments.

    Raises:
        ConfigError: the tokenizer or what the model needs to read images cannot be loaded here.
        RLHFError: a component cannot be built.
    """
    # Imported here: the tokenizer's library is heavy, and not every process that imports this module needs it.
    from rlhf_core.media.reader import writing_of
    from rlhf_data.chat.renderer import TokenizerRenderer
    from rlhf_data.tokenizer import load_tokenizer

    from .images import open_image_reader

    tokenizer = load_tokenizer(spec.tokenizer_path, trust_remote_code=spec.trust_remote_code)
    images = open_image_reader(spec.images, plugins)
    label = plugins.get(spec.executor.kind, spec.executor.name).label
    return RolloutParts(
        executor=NamedExecutor(plugins.build(spec.executor), label),
        renderer=TokenizerRenderer(
            tokenizer,
            control_words=spec.control_words,
            template_kwargs=spec.template_kwargs,
            writing=writing_of(images),
        ),
        environment=open_environments(spec.environments, plugins),
        images=images,
    )


class Rewards(Protocol):
    """Rewards that a ``GroupRunner`` asks: those of this process, or those of another one."""

    async def start(self) -> None:
        """Make ready to score.

        Raises:
            RewardError: a reward cannot be built.
        """

    async def score(self, requests: Requests) -> Scores:
        """Return one score per request, in order.

        Raises:
            RewardError: a sample could not be scored, and its reward's policy is to fail.
        """

    async def close(self) -> None:
        """Leave no process behind."""


class QueuedRewards:
    """Rewards of this process that score in one call what several groups ask while another call is under way."""

    def __init__(self, panel: RewardPanel) -> None:
        from .pool import RewardQueue

        self._panel = panel
        self._queue: RewardQueue[Requests, Scores] = RewardQueue(self._score_together)

    async def start(self) -> None:
        await self._panel.start()

    async def score(self, requests: Requests) -> Scores:
        return await self._queue.put(requests)

    async def close(self) -> None:
        await self._queue.close()
        await self._panel.close()

    async def _score_together(self, waiting: Sequence[Requests]) -> list[Scores]:
        scores = iter(await self._panel.score([one for requests in waiting for one in requests]))
        return [list(islice(scores, len(requests))) for requests in waiting]


def open_rewards(spec: RolloutSpec, plugins: Plugins) -> QueuedRewards | None:
    """Return the rewards, not started yet; None when the environment alone gives rewards."""
    from rlhf_guard.rewards.panel import RewardPanel
    from rlhf_guard.rewards.spec import selection_of

    if not spec.rewards:
        return None
    return QueuedRewards(RewardPanel([selection_of(each, plugins) for each in spec.rewards]))


@dataclass(frozen=True, slots=True)
class GroupRunner:
    """Plays and scores, in this process, groups that a ``GroupPlayer`` sends. Call ``start`` first, ``close`` last."""

    parts: RolloutParts
    """See ``open_rollouts``."""
    rewards: Rewards | None
    """See ``open_rewards``; None: the environment alone gives rewards."""

    async def start(self) -> None:
        """Start the rewards, and the workers of environments that run elsewhere.

        Raises:
            RLHFError: a reward cannot be built, or an environment's worker cannot be started.
        """
        if self.parts.environment is not None:
            await self.parts.environment.start()
        if self.rewards is not None:
            await self.rewards.start()

    async def play(self, task: Task, settings: GroupSettings, engine: Generator) -> FinishedGroup:
        """Return the played and scored group, with its tokens in this process's memory.

        Raises:
            RLHFError: an episode failed, or a sample could not be scored and its reward's policy is to fail.
        """
        from .episodes import EpisodeRunner

        episodes = EpisodeRunner(
            executor=self.parts.executor,
            context=self.parts.context(engine, settings.sampling, settings.max_length),
            seed_of=settings.seed_of,
            score=self.rewards.score if self.rewards is not None else None,
            samples_per_prompt=settings.num_samples,
            with_greedy=settings.with_greedy,
        )
        played = await episodes.play(task, with_logprobs=settings.sampling.logprobs)
        (finished,) = await episodes.score([played])
        return finished

    async def close(self) -> None:
        """Stop rewards and environments; none of their processes is left."""
        if self.parts.environment is not None:
            await self.parts.environment.close()
        if self.rewards is not None:
            await self.rewards.close()


def _no_seed(sample: int, turn: int) -> int:
    raise AssertionError("the episode runner gives each task its own seeds")
