"""Observations as tokens. An observation that cannot be one is the environment's failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rlhf_core import EnvironmentFailure, RolloutError, UnknownTokenError
from rlhf_core.contracts import ChatContinuation, Observation, RolloutContext, Task, Uid
from rlhf_core.media import Expanded, MediaProblem, MediaRef, references_in

from .conversation import Conversation
from .images import expanded

MadeT = TypeVar("MadeT")

MOST_CHARACTERS_PER_TOKEN = 256
"""Text with more characters than this for each token of the longest sequence is not tokenized: it cannot fit."""


def first_tokens(
    uid: Uid, task: Task, observation: Observation, context: RolloutContext
) -> Sequence[int]:
    """Return the tokens before the first turn: the observation of ``reset``, or the task's prompt if it is empty.

    Raises:
        EnvironmentFailure: the observation cannot be rendered.
        RolloutError: both are empty.
    """
    tokens: Sequence[int]
    if observation.messages:
        render = context.renderer.render
        tokens = _tokens(
            observation, context, lambda: render(observation.messages, observation.tools)
        )
    else:
        tokens = _plain_tokens(observation, context) or task.prompt_ids
    if not tokens:
        raise RolloutError(
            f"{uid}: reset gave no observation and the task has no prompt; expected one of them. Give --data, and "
            "--eval.data for evaluations, or an environment whose reset returns the first observation",
            code="environment/no-observation",
        )
    return tokens


def first_images(task: Task, observation: Observation) -> tuple[MediaRef, ...]:
    """Return the images before the first turn: those of the observation, or of the task's prompt if it is empty."""
    if observation.messages:
        return references_in(observation.messages)
    return () if observation.text or observation.token_ids is not None else task.media


def first_prompt(
    tokens: Sequence[int], images: Sequence[MediaRef], context: RolloutContext
) -> Expanded:
    """Return what the policy reads before its first turn.

    Raises:
        EnvironmentFailure: the images do not fit their markers, or there is no room for an action.
    """
    prompt = next_prompt(tokens, images, context)
    if len(prompt.token_ids) >= context.max_length:
        raise EnvironmentFailure(
            f"the first observation has {len(prompt.token_ids)} tokens and leaves no room for an action within "
            f"{context.max_length}; raise --rollout.max_length",
            code="rollout/prompt-too-long",
        )
    return prompt


def next_prompt(
    tokens: Sequence[int], images: Sequence[MediaRef], context: RolloutContext
) -> Expanded:
    """Return what the policy reads before a turn: all tokens of the images in the place of their markers.

    Raises:
        EnvironmentFailure: the images do not fit their markers.
    """
    try:
        return expanded(tokens, images, context)
    except MediaProblem as problem:
        raise EnvironmentFailure(
            f"images of the observations cannot be read: {problem}",
            code="environment/unusable-image",
        ) from problem


def all_tokens(
    conversation: Conversation,
    token_ids: Sequence[int],
    observation: Observation,
    context: RolloutContext,
    *,
    ended: bool,
    as_template: bool,
) -> ChatContinuation:
    """Return all tokens that the policy reads before its next turn: those so far, and the observation.

    Args:
        conversation: all messages so far, the policy's last answer at their end.
        token_ids: all tokens so far.
        ended: the policy ended its last turn with end-of-sequence itself.
        as_template: where the chat template shows the conversation so far in other words, its tokens are those of a new
            rendering.

    Raises:
        EnvironmentFailure: the observation cannot be rendered.
    """
    if not observation.messages:
        following = _plain_tokens(observation, context)
        return ChatContinuation(token_ids=(*token_ids, *following))
    renderer, tools = context.renderer, conversation.tools

    def extended() -> ChatContinuation:
        # Of a prompt of plain text no messages are known, and no template shows it anew.
        return renderer.extend(
            conversation.messages,
            token_ids,
            observation.messages,
            ended=ended,
            tools=tools,
            as_template=as_template and bool(conversation.messages),
        )

    too_long = ChatContinuation(token_ids=(0,) * context.max_length)
    return _made(observation, context, extended, too_long=too_long)


def unreadable(observation: Observation, error: UnknownTokenError) -> EnvironmentFailure:
    """Return the failure of an environment whose token ids the model does not know."""
    return EnvironmentFailure(
        f"the observation {_shown(observation)} cannot be read: {error}",
        code="environment/unreadable-observation",
    )


def _plain_tokens(observation: Observation, context: RolloutContext) -> Sequence[int]:
    text, given = observation.text, observation.token_ids
    if given is not None:
        return _tokens(observation, context, lambda: _checked_ids(given))
    if not text:
        return ()
    return _tokens(observation, context, lambda: context.renderer.encode(text))


def _tokens(
    observation: Observation, context: RolloutContext, make: Callable[[], Sequence[int]]
) -> Sequence[int]:
    """Return the tokens that ``make`` returns; for a text that cannot fit, as many as do not."""
    return _made(observation, context, make, too_long=[0] * context.max_length)


def _made(
    observation: Observation, context: RolloutContext, make: Callable[[], MadeT], *, too_long: MadeT
) -> MadeT:
    """Return what ``make`` returns; ``too_long`` for a text that cannot fit, without making its tokens."""
    most = MOST_CHARACTERS_PER_TOKEN * context.max_length
    try:
        texts = [observation.text or "", *(m.get("content") for m in observation.messages)]
        if any(isinstance(text, bytes) for text in texts):
            raise TypeError("expected text, got bytes; decode them")
        if sum(len(text) for text in texts if isinstance(text, str)) > most:
            return too_long
        return make()
    except Exception as error:
        raise EnvironmentFailure(
            f"the observation {_shown(observation)} cannot be made tokens: {type(error).__name__}: {error}",
            code="environment/unreadable-observation",
        ) from error


def _checked_ids(token_ids: Sequence[int]) -> Sequence[int]:
    for token in token_ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise ValueError(f"expected token ids, whole numbers from 0 on; got {token!r}")
    return token_ids


def _shown(observation: Observation) -> str:
    text = repr(observation)
    return text if len(text) <= 200 else text[:200] + "..."
