"""Environments, which answer the policy between its turns. One instance plays one episode.

``reset``, ``step`` and ``close`` are all that an environment needs. Three further methods are optional, each a protocol
of its own: ``tasks`` (``MakesTasks``), ``episode_rewards`` (``RewardsEpisodes``) and ``oracle`` (``KnowsAnswers``). So
is the attribute ``manifest`` of its class (``EnvironmentManifest``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from ..batch.task import Message, Task
from ..batch.trajectory import Stop


class EnvironmentKind(StrEnum):
    """Kind of an environment's episodes."""

    SINGLE_TURN = "single_turn"
    """One answer, then the end."""
    MULTI_TURN = "multi_turn"
    """Several turns of text."""
    TOOLS = "tools"
    """The policy calls functions."""
    AGENT = "agent"
    """The environment's own program talks to the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentManifest:
    """Description of an environment by its author, as the attribute ``manifest`` of the environment's class.

    Raises:
        ValueError: the kind is not an ``EnvironmentKind``, the range is not valid, or the version has a space or an @.
    """

    kind: EnvironmentKind = EnvironmentKind.MULTI_TURN
    """Form of its episodes: one turn or several."""
    reward_range: tuple[float, float] | None = None
    """Smallest and largest reward of a whole episode; a right answer earns the largest. None: not stated."""
    deterministic: bool = True
    """True: task, seed and actions determine observations and rewards."""
    license: str = ""
    """SPDX identifier of the license of code and tasks, such as ``Apache-2.0``."""
    version: str = ""
    """Version of the tasks and rewards; rewards of two versions cannot be compared. Empty: the version of the
    distribution."""
    oracle_tolerance: float = 0.0
    """Share of the reward range by which a right answer may miss the largest reward."""

    def __post_init__(self) -> None:
        kinds = [kind.value for kind in EnvironmentKind]
        if self.kind not in kinds:
            raise ValueError(f"kind: expected one of {', '.join(kinds)}; got {self.kind!r}")
        object.__setattr__(self, "kind", EnvironmentKind(self.kind))
        if self.reward_range is not None:
            low, high = self.reward_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(
                    f"reward_range: expected two finite numbers, the smaller first; got {self.reward_range}"
                )
        if not 0.0 <= self.oracle_tolerance < 1.0:
            raise ValueError(
                f"oracle_tolerance: expected a number from 0 to below 1, got {self.oracle_tolerance}"
            )
        if any(character.isspace() or character == "@" for character in self.version):
            raise ValueError(f"version: expected one word without @, got {self.version!r}")


class EpisodeEnd(StrEnum):
    """Reason for the end of an episode."""

    FINISHED = "finished"
    """The environment, or the agent, said that the episode is over."""
    LENGTH = "length"
    """The last turn was cut off by its own limit of tokens."""
    TURNS = "turns"
    """The policy had all its turns."""
    CONTEXT = "context"
    """Another turn would have exceeded the longest allowed sequence or the episode's limit of tokens."""
    ENVIRONMENT_ERROR = "environment_error"
    """The environment or the agent raised an exception, died, or returned an invalid result."""
    TIMEOUT = "timeout"
    """The seconds of a turn or of the episode were used up."""
    ABORTED = "aborted"
    """The engine aborted a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSampling:
    """Sampling settings that an environment asks for in the policy's next turn.

    An environment cannot change the temperature: training computes the log-probs of all turns at the run's own.

    Raises:
        ValueError: a number is below 1, or a stop string is empty.
    """

    max_new_tokens: int | None = None
    """Longest turn, in tokens; a larger value than the run's limit, or None, means the run's limit."""
    stop: tuple[str, ...] | None = None
    """Strings that end the turn, in place of the run's; None: the run's."""

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}; expected at least 1")
        if self.stop is not None and not all(isinstance(one, str) and one for one in self.stop):
            raise ValueError(f"stop is {self.stop!r}; expected strings that are not empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Text for the policy to read, in one of three forms. At most one of them is set; with none, nothing is added."""

    text: str | None = None
    """Text that is tokenized unchanged; control words in it are ordinary text."""
    messages: tuple[Message, ...] = ()
    """Rendered with the chat template; control words in their contents are ordinary text."""
    token_ids: tuple[int, ...] | None = None
    """Token ids that are used unchanged."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of the functions that the policy may call, for the template. Read from the first observation, which
    then has ``messages``."""
    sampling: TurnSampling | None = None
    """Sampling settings for the policy's answer to this observation; None: the run's settings."""

    def __post_init__(self) -> None:
        given = [self.text is not None, bool(self.messages), self.token_ids is not None]
        if sum(given) > 1:
            raise ValueError("an Observation takes one of text, messages and token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function that the policy asked for."""

    name: str
    """Name of the tool."""
    arguments: str
    """The arguments as the policy wrote them: JSON, if it is well formed."""
    id: str = ""
    """Id of the call within its answer; a tool message uses it to refer to the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The policy's answer in one turn."""

    text: str
    """Decoded, without special tokens."""
    token_ids: tuple[int, ...]
    """The answer as the policy sampled it, its end included."""
    stop: Stop
    """Reason for its end."""
    turn: int
    """Index of the turn in the episode, from 0."""
    reasoning: str = ""
    """Thoughts of the policy before its answer, where the model marks them; they are not in ``content``."""
    content: str | None = None
    """The answer without reasoning and tool calls; None: the model marks neither, so ``text`` is the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Functions that the policy asked for, parsed from token ids where the model has special tokens for them."""
    malformed: tuple[str, ...] = ()
    """A reason for each tool call that the policy began and did not complete correctly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's answer to one action."""

    observation: Observation = field(default_factory=Observation)
    """Observation that the policy reads before its next answer: what it has neither read nor written yet."""
    reward: float = 0.0
    """Reward of this turn, placed on the turn's last action token."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Further rewards of this turn, by name. The turn earns ``reward`` plus their sum; each name has a metric."""
    done: bool = False
    """True: the episode ends with this step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the episode, by name; if several steps give a metric, the last value counts."""


class Environment(Protocol):
    """Plays one episode: ``reset`` is called once, ``step`` after each turn, and ``close`` always, also after an error.

    All randomness has to come from the seed of ``reset``.
    """

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the episode. After an empty observation the policy reads the task's own prompt."""

    async def step(self, action: Action) -> StepResult:
        """Answer one turn. Not called again after ``done``."""

    async def close(self) -> None:
        """Release what the episode holds."""


@runtime_checkable
class MakesTasks(Protocol):
    """An environment that makes its own tasks, so that a run needs no data files."""

    def tasks(self, split: str) -> Iterable[Mapping[str, Any]]:
        """Return the tasks of a split, each as a row: ``Task.row`` of the episodes that play it.

        The run calls it on an instance that plays no episode; each call returns the same tasks in the same order. A
        sequence (``len`` and ``[index]``) is read by index; anything else is read lazily from its start, and may be
        infinite. A row may have a ``key``, text or a number that names the task and is unique in the split.

        Args:
            split: ``train``, ``eval``, or a name of the environment's own.

        Raises:
            KeyError: there is no such split.
        """


@runtime_checkable
class RewardsEpisodes(Protocol):
    """An environment that judges a whole episode after its end."""

    async def episode_rewards(self) -> Mapping[str, float]:
        """Return the rewards of the whole episode, by name; their sum stands on the last action token. It is called
        once, after the last step and before ``close``, also when a limit of tokens or turns ended the episode; not
        after an error or a time-out."""


@runtime_checkable
class KnowsAnswers(Protocol):
    """An environment that can play itself, which checks use to tell right answers from others. No run calls it."""

    async def oracle(self) -> str | Sequence[ToolCall]:
        """Return a right answer for the next turn, as text or as calls. Checks call it after ``reset`` and between
        steps; it must not change the episode."""


def manifest_of(environment: object) -> EnvironmentManifest | None:
    """Return the manifest of an environment's class, factory or instance; None if it has none.

    Raises:
        TypeError: the attribute ``manifest`` is not an ``EnvironmentManifest``.
    """
    found = getattr(environment, "manifest", None)
    if found is not None and not isinstance(found, EnvironmentManifest):
        raise TypeError(
            f"manifest of {getattr(environment, '__name__', environment)!s}: expected an EnvironmentManifest, got "
            f"{type(found).__name__}"
        )
    return found
