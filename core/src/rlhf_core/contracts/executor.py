"""Rollout executors, which turn a task into trajectories, and players of groups: all episodes of a prompt at once.

A runtime plays and scores groups in processes of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from ..batch.task import Message, Task
from ..batch.trajectory import Trajectory, Uid
from ..batch.trajectory_columns import TrajectoryColumns
from ..media.reader import ImageReader
from .engine import Completion, GenerationRequest, SamplingParams
from .environment import Environment, ToolCall


class Generator(Protocol):
    """The part of an engine that executors see."""

    async def generate(self, request: GenerationRequest) -> list[Completion]: ...


ControlWordUse = Literal["text", "tokens"]
"""Use of control words (``<|im_end|>``, ``<tool_call>``) in texts that others than the policy wrote: ordinary text, or
control tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Parsed answer of the policy in one turn."""

    text: str
    """The whole answer, decoded without special tokens."""
    reasoning: str = ""
    """Thoughts of the policy before its answer, where the model marks them."""
    content: str | None = None
    """The answer without reasoning and tool calls; None: the model marks neither, so ``text`` is the answer."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Functions that the policy asked for, well formed."""
    malformed: tuple[str, ...] = ()
    """A readable reason for each tool call that the policy began and did not complete correctly."""
    reasoning_open: bool = False
    """True: the thought has not ended, so there is no answer yet."""

    def message(self) -> Message:
        """Return the answer as a chat message for the chat template."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self.text if self.content is None else self.content,
        }
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.loads(call.arguments)},
                }
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatContinuation:
    """Tokens that the policy reads at its next turn."""

    token_ids: tuple[int, ...]
    """All tokens, from the first one of the conversation."""
    forked: bool = False
    """True: the tokens do not begin with all tokens of earlier turns, so the next turn is on a new path."""
    reason: str = ""
    """Reason for the fork; empty without a fork."""
    showed_all: bool = False
    """True: the template had to render the whole conversation, because its text after the last answer depends on
    earlier messages. The cost of such turns grows with the conversation."""


class Renderer(Protocol):
    """Text to tokens and back, by the run's tokenizer and chat template."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens, with no spaces removed."""

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each sequence, as ``decode`` gives it; faster for many."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a conversation, up to the point where the policy writes.

        Args:
            tools: JSON schemas of the functions that the policy may call.
        """

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """Return a renderer that passes these further variables to the chat template, such as ``enable_thinking``.

        Raises:
            DataError: the chat template does not read one of them.
        """

    def render_next(
        self, messages: Sequence[Message], *, ended: bool, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens between the policy's last turn and its next one: the template's end of the last turn
        (unless the policy ``ended`` it with end-of-sequence itself), then ``messages``. Earlier tokens are never
        tokenized again."""

    def extend(
        self,
        conversation: Sequence[Message],
        token_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        as_template: bool = False,
    ) -> ChatContinuation:
        """Return all tokens of the policy's next turn: ``token_ids`` and ``render_next`` of ``messages``.

        Args:
            conversation: all messages so far, the policy's last answer at their end; empty behind a prompt of plain
                text, with which ``as_template`` is false.
            token_ids: all tokens so far, as they were read and sampled, the last answer's at their end.
            messages: messages between the last answer and the next one.
            ended: True if the policy ended its last turn itself.
            as_template: where the template shows the conversation so far differently once ``messages`` follow (it
                drops thoughts, or moves tools), the turn forks: its tokens are those of a new rendering.
        """

    def parse(
        self,
        token_ids: Sequence[int],
        *,
        prompt_ids: Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """Return the policy's answer in one turn: reasoning, content and tool calls, parsed from token ids.

        Args:
            tools: JSON schemas of the functions, which give the values of calls their types where the form has none.
            prompt_ids: tokens that the policy read before, whose end may have begun a thought; None: the end that
                ``render`` gives every conversation.
        """


def keep_no_account(uid: Uid, reason: str) -> None:
    """Ignore that an episode was left out; the default for executors that are called outside a run."""


def without_label(task: Task) -> str:
    """Return an empty text, the label of environments that no plugin registered."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """Tools and settings that an executor gets in addition to the task."""

    engine: Generator
    """The policy."""
    renderer: Renderer
    """Converts messages to tokens and back, as the model does."""
    sampling: SamplingParams
    """Temperature and limits of each answer."""
    max_length: int
    """Maximum number of tokens in a sequence: prompt, actions and environment text."""
    seed: Callable[[int, int], int]
    """``seed(sample, turn)``: the 64-bit seed of a turn."""
    environment: Callable[[Task], Environment] | None = None
    """Returns a new environment for an episode of the task; None: the run has no environments."""
    environment_label: Callable[[Task], str] = without_label
    """Name and version of the environment of a task, for messages; empty: unknown."""
    images: ImageReader | None = None
    """Reads images and gives them their tokens; None: the policy reads text only."""
    drop: Callable[[Uid, str], None] = keep_no_account
    """``drop(uid, reason)`` leaves an episode out of its group; ``run`` then returns no trajectory of it. The reason is
    a short word under which such episodes are counted."""


class RolloutExecutor(Protocol):
    """Runs all episodes of one task (a group). Called concurrently for many tasks on one asyncio loop."""

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return the trajectories of the given episodes.

        Each carries ``uid = task.uid._replace(sample=..., segment=...)``; an episode may give several segments, and one
        that ``context.drop`` was called for gives none.
        The result must be a function of the task, the samples, the weights and ``context.seed`` alone.

        Raises:
            RolloutError: an episode failed; the message names its uid.
        """


SeedOf = Callable[[Task, int, int], int]
"""``seed_of(task, sample, turn)``: the 64-bit seed of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a group. Together with the task, the weights and the ``RolloutSpec`` they determine the group.

    Many groups share one such object, so a player may send it to another process only once.
    """

    num_samples: int
    """Episodes of each prompt."""
    sampling: SamplingParams
    """Temperature and limits of each answer."""
    max_length: int
    """Maximum number of tokens in a sequence: prompt, answers and environment text."""
    seed_of: SeedOf
    """A ``functools.partial`` of a module's function, so that it can be pickled: its arguments are sent, not its
    code."""
    with_greedy: bool = False
    """Play one more episode at temperature 0, whose reward becomes a metric of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group after playing and scoring."""

    batch: TrajectoryColumns | None
    """The scored trajectories, ordered by uid; None if the group was dropped."""
    dropped: str | None = None
    """Reason for dropping the group: a sample could not be scored, or no episode is left. None: it was not dropped."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Number of episodes that were left out of the group before that, by reason."""


class GroupPlayer(Protocol):
    """Plays and scores groups in other processes, where their tokens may stay."""

    async def play(self, task: Task, settings: GroupSettings) -> FinishedGroup:
        """Return the group, bitwise equal to the one that this process would play itself.

        Raises:
            RLHFError: an episode failed, or a sample could not be scored and its reward's policy is to fail.
        """
