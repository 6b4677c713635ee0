"""The executor ``single_turn``, in whose episodes the policy writes one response to the prompt.

The samples of a group go to the engine as one request, so that the engine can compute the prompt once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_core import Config, RolloutError
from rlhf_core.contracts import GenerationRequest, RolloutContext, Task, Trajectory
from rlhf_core.media import MediaProblem, MediaSpan
from rlhf_episodes import single_answer

from .budgets import limited
from .images import check_sampled, expanded


class SingleTurn:
    """Runs episodes of one prompt and one response. Tokens are kept as they were sampled."""

    def __init__(self, config: Config) -> None:
        pass

    async def run(
        self, task: Task, samples: Sequence[int], context: RolloutContext
    ) -> list[Trajectory]:
        """Return one trajectory per sample, in the order of ``samples``.

        Raises:
            RolloutError: the prompt is empty or leaves no room for a response, or the engine failed.
        """
        if not samples:
            return []
        if not task.prompt_ids:
            raise RolloutError(
                f"{task.uid}: the task has no prompt. Give --data, or choose --executor multi_turn with --env, where "
                "the environment writes the first observation",
                code="rollout/no-prompt",
            )
        # Images become as many tokens as the model reads of them, which may leave no room.
        prompt_ids: tuple[int, ...] = task.prompt_ids
        media: tuple[MediaSpan, ...] = ()
        if task.media or context.images is not None:
            prompt_ids, media = _with_images(task, context)
        room = context.max_length - len(prompt_ids)
        if room <= 0:
            raise RolloutError(
                f"{task.uid}: a prompt of {len(prompt_ids)} tokens leaves no room for a response within "
                f"{context.max_length}; raise --rollout.max_length or lower --data.max_prompt_tokens",
                code="rollout/prompt-too-long",
            )
        # Samples of a prompt share one request, whose prompt the engine computes once.
        sampling = context.sampling
        if not sampling.min_new_tokens <= sampling.max_new_tokens <= room:
            sampling = limited(sampling, room)
        completions = await context.engine.generate(
            GenerationRequest(
                uid=task.uid._replace(sample=samples[0]),
                prompt_ids=prompt_ids,
                media=media,
                seeds=tuple(context.seed(sample, 0) for sample in samples),
                sampling=sampling,
            )
        )
        if len(completions) != len(samples):
            raise RolloutError(
                f"{task.uid}: the engine returned {len(completions)} completions for {len(samples)} seeds",
                code="engine/wrong-answer",
            )
        # A token that stands for images could not be told from one of an image, so no answer may have it.
        trajectories = []
        prompt = np.array(prompt_ids, dtype=np.int32)
        for sample, completion in zip(samples, completions, strict=True):
            uid = task.uid._replace(sample=sample)
            if context.images is not None:
                check_sampled(uid, completion.token_ids, context.images)
            one_token = context.sampling.max_new_tokens == 1
            trajectories += single_answer(
                uid, prompt, completion, one_token_turns=one_token, media=media
            )
        return trajectories


def _with_images(
    task: Task, context: RolloutContext
) -> tuple[tuple[int, ...], tuple[MediaSpan, ...]]:
    """Return the task's prompt with all tokens of its images, and their places."""
    try:
        return expanded(task.prompt_ids, task.media, context)
    except MediaProblem as problem:
        raise RolloutError(f"{task.uid}: {problem}", code="image/unusable") from problem
