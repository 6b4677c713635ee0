"""One prompt: its completions from the engine, and their scores from the rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from rlhf_core import RolloutError
from rlhf_core.contracts import (
    Completion,
    GenerationRequest,
    Generator,
    Message,
    RewardRequest,
    SamplingParams,
    Stop,
    Task,
    Turn,
)
from rlhf_core.media import Expanded, ImageReader, sample_images
from rlhf_data import TokenizerRenderer
from rlhf_trainer.inference import (
    PromptFormat,
    RewardPanel,
    RewardQueue,
    SampleScore,
    fault_point,
    renderer_of,
    seed_of,
)

from ..worklist.image_files import files_in, with_files
from .records import AnsweredPrompt, PromptIdentity, ScoredAnswer

Requests = Sequence[RewardRequest]
Scores = Sequence[SampleScore]


class Prompter:
    """Reader of prompts as text, as messages, and as what the engine reads.

    Args:
        images: gives images their tokens; None: the model reads text alone.
    """

    def __init__(
        self, format: PromptFormat, renderer: TokenizerRenderer, images: ImageReader | None = None
    ) -> None:
        self._format = format
        self.renderer = renderer
        self.images = images

    def read(self, task: Task) -> Expanded:
        """Return the tokens of a task's prompt, with all those of its images."""
        if self.images is None:
            return Expanded(task.prompt_ids, ())
        return self.images.expand(task.prompt_ids, task.media)

    def prompt_of(self, task: Task) -> tuple[str, tuple[Message, ...] | None]:
        """Return a task's prompt as text, and its messages if it is a chat; images are paths of files there."""
        renderer = renderer_of(task.row, self.renderer)
        if task.media:
            return renderer.render_text(task.messages), with_files(task.messages)
        prompt = self._format.prompt(task.row)
        if isinstance(prompt, str):
            return prompt, None
        return renderer.render_text(prompt), prompt

    def template_kwargs_of(self, task: Task) -> Mapping[str, Any]:
        """Return the variables by which the chat template renders a task's prompt."""
        return renderer_of(task.row, self.renderer).template_kwargs

    def identity_of(self, task: Task) -> PromptIdentity:
        """Return that by which a prompt is told from others: its place, its text and the files of its images."""
        text, messages = self.prompt_of(task)
        return PromptIdentity(
            task.uid.prompt, text, tuple(files_in(messages)) if task.media else ()
        )


class Answerer:
    """Answers prompts. ``close`` ends a call to the rewards that is under way.

    Args:
        panel: the rewards, started; None: nothing is scored.
        count: completions of a prompt.
    """

    def __init__(
        self,
        engine: Generator,
        prompter: Prompter,
        panel: RewardPanel | None,
        *,
        sampling: SamplingParams,
        count: int,
        seed: int,
    ) -> None:
        self._engine = engine
        self._prompter = prompter
        self._panel = panel
        self._queue: RewardQueue[Requests, Scores] = RewardQueue(self._score_together)
        self._sampling = sampling
        self._count = count
        self._seed = seed

    async def answer(self, task: Task) -> AnsweredPrompt:
        """Return a task's prompt with its completions.

        Raises:
            RolloutError: the engine failed.
            RewardError: a completion could not be scored, and its reward's policy is to fail.
        """
        fault_point("generate", task.uid.prompt)
        # Functions of the run's seed and of the completions' names alone.
        seeds = tuple(
            seed_of(self._seed, "generate", task.uid.prompt, sample)
            for sample in range(self._count)
        )
        read = self._prompter.read(task)
        completions = await self._engine.generate(
            GenerationRequest(
                uid=task.uid,
                prompt_ids=read.token_ids,
                seeds=seeds,
                sampling=self._sampling,
                media=read.spans,
            )
        )
        if len(completions) != len(seeds):
            raise RolloutError(
                f"{task.uid}: the engine returned {len(completions)} completions for {len(seeds)} seeds",
                code="engine/wrong-answer",
            )
        texts = self._prompter.renderer.decode_batch(
            [one.token_ids.tolist() for one in completions], skip_special_tokens=True
        )
        scores: Scores = [SampleScore(reward=None)] * self._count
        if self._panel is not None:
            scores = await self._queue.put(self._requests(task, read, completions, texts))
        prompt, messages = self._prompter.prompt_of(task)
        return AnsweredPrompt(
            index=task.uid.prompt,
            dataset=task.dataset,
            prompt=prompt,
            messages=messages,
            prompt_tokens=len(read.token_ids),
            completions=tuple(map(_scored, completions, texts, seeds, scores)),
            chat_template_kwargs=self._prompter.template_kwargs_of(task),
        )

    async def close(self) -> None:
        """End the call to the rewards that is under way."""
        await self._queue.close()

    def _requests(
        self, task: Task, read: Expanded, completions: Sequence[Completion], texts: Sequence[str]
    ) -> list[RewardRequest]:
        start = len(read.token_ids)
        prompt = self._prompter.renderer.decode(read.token_ids, skip_special_tokens=False)
        return [
            RewardRequest(
                uid=str(task.uid._replace(sample=sample)),
                row=task.row,
                prompt=prompt,
                response=text,
                token_ids=(*read.token_ids, *completion.token_ids.tolist()),
                action_mask=(False,) * start + (True,) * len(completion.token_ids),
                turns=(
                    Turn(start=start, end=start + len(completion.token_ids), stop=completion.stop),
                ),
                truncated=completion.stop == Stop.LENGTH,
                media=sample_images(read.spans, self._prompter.images),
            )
            for sample, (completion, text) in enumerate(zip(completions, texts, strict=True))
        ]

    async def _score_together(self, waiting: Sequence[Requests]) -> list[Scores]:
        """Score the completions of several prompts in one call."""
        assert self._panel is not None
        scores = iter(await self._panel.score([one for requests in waiting for one in requests]))
        return [list(islice(scores, len(requests))) for requests in waiting]


def _scored(completion: Completion, text: str, seed: int, score: SampleScore) -> ScoredAnswer:
    return ScoredAnswer(
        text=text,
        tokens=len(completion.token_ids),
        stop=completion.stop.value,
        logprob=float(completion.logprobs.sum(dtype=np.float64)),
        seed=seed,
        reward=score.reward,
        rewards=dict(score.rewards),
        metrics=dict(score.metrics),
    )
