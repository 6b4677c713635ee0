"""The model's part of a conversation: answers, a few tokens at a time.

An engine returns whole completions, so an answer is made of short ones, each the continuation of those before. Every
token has the distribution that it would have in one completion, and any engine can do it; the price is a pass over the
conversation for each piece, which engines with a prefix cache spare.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from rlhf_core import DataError, RolloutError
from rlhf_core.contracts import GenerationRequest, Generator, Message, SamplingParams, Stop, Uid
from rlhf_core.media import Expanded, ImageReader, MediaProblem, references_in
from rlhf_data import TokenizerRenderer
from rlhf_trainer.inference import seed_of

_UNFINISHED = "\ufffd"
"""Character that decoders write for bytes that do not make up a character yet."""


class Speaker:
    """Answers conversations.

    Args:
        piece: tokens after which text is yielded; 0: with the end of the answer.
        max_length: tokens of conversation and answer together.
        images: takes images in, and gives them their tokens; None: the model reads text alone.
    """

    def __init__(
        self,
        engine: Generator,
        renderer: TokenizerRenderer,
        *,
        sampling: SamplingParams,
        seed: int,
        piece: int,
        max_length: int,
        images: ImageReader | None = None,
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self.sampling = sampling
        """Parameters of the next answer."""
        self._seed = seed
        self._piece = piece
        self._max_length = max_length
        self.images = images

    async def answer(
        self, messages: Sequence[Message], *, turn: int, attempt: int
    ) -> AsyncIterator[str]:
        """Yield the answer's text, piece by piece; a stop string ends it, and stays in it.

        Args:
            turn: number of the question, which with ``attempt`` decides the seeds.

        Raises:
            DataError: the chat template refuses the messages.
            RolloutError: the conversation leaves no room for an answer, or the engine failed.
        """
        prompt, media = self._read(messages)
        room = self._max_length - len(prompt)
        if room <= 0:
            raise RolloutError(
                f"the conversation has {len(prompt)} tokens, which leaves no room for an answer within "
                f"{self._max_length}. Forget it with /reset, or start with a larger --chat.max_length",
                code="rollout/prompt-too-long",
            )
        limit = min(room, self.sampling.max_new_tokens)
        tokens: list[int] = []
        shown = 0
        is_over = False
        while not is_over:
            seed = seed_of(self._seed, "chat", turn, attempt, len(tokens))
            request = GenerationRequest(
                uid=Uid(0, turn, attempt),
                prompt_ids=(*prompt, *tokens),
                seeds=(seed,),
                sampling=self._sampling_of_piece(len(tokens), limit),
                media=media,
            )
            (completion,) = await self._engine.generate(request)
            tokens += completion.token_ids.tolist()
            is_over = completion.stop != Stop.LENGTH or len(tokens) >= limit
            text = self._renderer.decode(tokens)
            # As engines do: a stop string within the first tokens is ignored.
            first = self._renderer.decode(tokens[: self.sampling.min_new_tokens])
            ended = _end_of_stop(text, self.sampling.stop, len(first.rstrip(_UNFINISHED)))
            if ended is not None:
                text, is_over = text[:ended], True
            elif not is_over:
                text = text.rstrip(_UNFINISHED)
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)

    def _read(self, messages: Sequence[Message]) -> Expanded:
        """Return the tokens of a conversation, with all those of its images."""
        ids = self._renderer.render(messages)
        if self.images is None:
            return Expanded(tuple(ids), ())
        try:
            return self.images.expand(ids, references_in(messages))
        except MediaProblem as problem:
            raise DataError(str(problem), code="image/unusable") from problem

    def _sampling_of_piece(self, written: int, limit: int) -> SamplingParams:
        tokens = limit - written if self._piece == 0 else min(self._piece, limit - written)
        return replace(
            self.sampling,
            max_new_tokens=tokens,
            min_new_tokens=min(tokens, max(0, self.sampling.min_new_tokens - written)),
            # A stop string may begin in one piece and end in another, where no engine would see it.
            stop=(),
            logprobs=False,
        )


def _end_of_stop(text: str, stops: Sequence[str], ignored: int) -> int | None:
    """Return the index behind the first stop string; None where the text has none.

    Args:
        ignored: number of first characters within which none ends.
    """
    starts = [(text.find(stop, max(0, ignored - len(stop) + 1)), stop) for stop in stops]
    return min((start + len(stop) for start, stop in starts if start >= 0), default=None)
