"""The executor ``multi_turn``, in whose episodes policy and environment take turns.

- Each episode has its own environment, which is always closed. All episodes of a group get the same environment seed,
  ``context.seed(0, -1)``: they face the same problem, so their rewards compare the policy's choices.
- The policy's tokens are kept as they were sampled. Only the environment's text is tokenized, and appended.
- A turn has at most ``max_new_tokens``, and no more than ``max_length`` leaves. An observation that leaves no room for
  another turn is not appended, and the last turn's stop becomes LENGTH: the episode is truncated.
- The environment's last observation (with ``done``, or after ``max_turns``) is not appended, since no action follows.
- An end at ``max_turns`` is not a truncation; the metric ``finished`` is 1 only if the environment ended the episode.
- Metrics: ``turns``, ``finished``, and for each metric of the environment its last value, as ``env/name``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    Action,
    GenerationRequest,
    Observation,
    RolloutContext,
    Stop,
    Task,
    Trajectory,
    Uid,
)

from .config import MultiTurnConfig
from .play import Play
from .recording import Recording, limited


class MultiTurn:
    """Runs the episodes of a group at the same time."""

    def __init__(self, config: MultiTurnConfig) -> None:
        self._config = config

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return one trajectory per sample, in the order of ``samples``.

        Raises:
            RolloutError: an environment or the engine failed; the other episodes were cancelled and their
                environments closed.
        """
        try:
            async with asyncio.TaskGroup() as group:
                episodes = [
                    group.create_task(self._episode(task, sample, context)) for sample in samples
                ]
        except ExceptionGroup as errors:
            raise _first(errors) from errors
        return [episode.result() for episode in episodes]

    async def _episode(self, task: Task, sample: int, context: RolloutContext) -> Trajectory:
        uid = task.uid._replace(sample=sample)
        async with self._play(uid, task, context) as play:
            observation = await play.reset(task, context.seed(0, -1))
            recording = Recording(uid, _first_tokens(uid, task, observation, context))
            metrics: dict[str, float] = {}
            finished = False
            for turn in range(self._config.max_turns):
                action = await _act(recording, context)
                if action.stop is Stop.ABORTED:
                    break
                result = await play.step(action)
                recording.reward_turn(result.reward)
                metrics |= {f"env/{name}": value for name, value in result.metrics.items()}
                finished = result.done
                if finished or turn == self._config.max_turns - 1:
                    break
                if not _append(recording, result.observation, context):
                    break
        metrics |= {"turns": float(len(recording.turns)), "finished": float(finished)}
        return recording.trajectory(metrics)

    @asynccontextmanager
    async def _play(self, uid: Uid, task: Task, context: RolloutContext) -> AsyncIterator[Play]:
        if context.environment is None:
            raise RolloutError(f"{uid}: multi_turn needs an environment; choose one with --env")
        play = Play(uid, partial(context.environment, task), self._config.environment_timeout_s)
        try:
            yield play
        except BaseException:
            # The first error has to be reported, not a failure to close after it.
            with suppress(RolloutError):
                await play.close()
            raise
        await play.close()


def _first_tokens(
    uid: Uid, task: Task, observation: Observation, context: RolloutContext
) -> Sequence[int]:
    """Return the tokens before the first turn: the observation of ``reset``, or the task's prompt if it is empty.

    Raises:
        RolloutError: both are empty, or there is no room for an action.
    """
    if observation.messages:
        tokens: Sequence[int] = context.renderer.render(observation.messages)
    else:
        tokens = _plain_tokens(observation, context) or task.prompt_ids
    if not tokens:
        raise RolloutError(
            f"{uid}: reset gave no observation and the task has no prompt; expected one of them. Give --data, or an "
            "environment whose reset returns the first observation"
        )
    if len(tokens) >= context.max_length:
        raise RolloutError(
            f"{uid}: the first observation has {len(tokens)} tokens and leaves no room for an action within "
            f"{context.max_length}; raise --rollout.max_length"
        )
    return tokens


async def _act(recording: Recording, context: RolloutContext) -> Action:
    """Have the engine sample the policy's next turn, append it to the recording, and return it as an action."""
    turn = len(recording.turns)
    (completion,) = await context.engine.generate(
        GenerationRequest(
            uid=recording.uid,
            turn=turn,
            prompt_ids=tuple(recording.token_ids),
            seeds=(context.seed(recording.uid.sample, turn),),
            sampling=limited(context.sampling, context.max_length - len(recording)),
        )
    )
    recording.add_turn(completion)
    tokens = tuple(completion.token_ids.tolist())
    text = context.renderer.decode(tokens, skip_special_tokens=True)
    return Action(text=text, token_ids=tokens, stop=completion.stop, turn=turn)


def _append(recording: Recording, observation: Observation, context: RolloutContext) -> bool:
    """Append an observation, and return True; if this leaves no room for a turn, mark the truncation instead."""
    if observation.messages:
        ended = recording.turns[-1].stop is Stop.EOS
        tokens: Sequence[int] = context.renderer.render_next(observation.messages, ended=ended)
    else:
        tokens = _plain_tokens(observation, context)
    if len(recording) + len(tokens) >= context.max_length:
        recording.mark_truncated()
        return False
    recording.add_text(tokens)
    return True


def _plain_tokens(observation: Observation, context: RolloutContext) -> Sequence[int]:
    if observation.token_ids is not None:
        return observation.token_ids
    return context.renderer.encode(observation.text) if observation.text else ()


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    """Return the first error in nested exception groups."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
