"""Scores of token sequences by a reward model.

The score is the head's output at the sequence's last token: ``(w . h_last - mean) / std``. ``ends.py`` decides which
token that is. Rows are padded on the
right, where padding cannot reach a real token: neither a causal model nor the attention mask lets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import ConfigError, RewardError

from .config import ModelOptions
from .loading import HEAD, LoadedModel, load_model

TokenIds = Sequence[int]
Forward = Callable[[Sequence[TokenIds], Sequence[int]], Sequence[list[float] | RewardError]]
"""Function from the sequences of a pass, and their indices among all, to some numbers of each, or the reason why it has
none."""


class Scorer:
    """A loaded reward model that scores sequences. Only one thread may use a scorer at a time.

    Args:
        loaded: the model; None: that of the options, which reads text alone.
    """

    def __init__(self, options: ModelOptions, loaded: LoadedModel | None = None) -> None:
        self._options = options
        self.loaded: LoadedModel = loaded or load_model(options)
        self.tokenizer = self.loaded.tokenizer
        self.end = self.loaded.end
        self._device = _device_of(self.loaded)

    def is_in_place(self) -> bool:
        """Return whether the model's weights are where they were at first; those of a role may move."""
        return self._device == _device_of(self.loaded)

    def describe(self) -> str:
        """Return the model's path, device and dtype, for a message."""
        dtype = str(self.loaded.model.dtype).removeprefix("torch.")
        return f"{self._options.path} on {self._device}, {dtype}"

    def scores(self, sequences: Sequence[TokenIds]) -> list[float | RewardError]:
        """Return each sequence's score; for a sequence without a score, an error with the reason."""
        return self.scores_by(sequences, self._forward)

    def scores_by(
        self, sequences: Sequence[TokenIds], forward: Forward
    ) -> list[float | RewardError]:
        """Return the scores of ``scores``, computed by another forward pass."""
        found = self._scores(sequences, forward)
        return [value if isinstance(value, RewardError) else value[0] for value in found]

    def scores_at(
        self, sequences: Sequence[TokenIds], places: Sequence[Sequence[int]]
    ) -> list[list[float] | RewardError]:
        """Return the scores of each sequence at its places, not normalized; for a sequence that cannot be scored, an
        error with the reason.

        Args:
            places: rising indices of tokens of each sequence, at least one.

        Raises:
            ConfigError: the model is an encoder, which has no score of the beginning of a sequence.
        """
        if self._head is None:
            raise ConfigError(
                f"reward model {self._options.path}: expected a decoder with a linear head {HEAD!r}, which scores "
                f"every token; got {type(self.loaded.model).__name__}",
                code="reward-model/unusable",
            )

        def forward(rows: Sequence[TokenIds], indices: Sequence[int]) -> list[list[float]]:
            return self._head_at(rows, [places[index] for index in indices])

        return self._scores(sequences, forward)

    def _scores(
        self, sequences: Sequence[TokenIds], forward: Forward
    ) -> list[list[float] | RewardError]:
        results: list[list[float] | RewardError] = [
            RewardError("not scored", code="reward-model/not-scored")
        ] * len(sequences)
        fitting: dict[int, TokenIds] = {}
        for index, sequence in enumerate(sequences):
            try:
                fitting[index] = self._fitted(sequence)
            except RewardError as error:
                results[index] = error
        for indices in batches(
            {i: len(ids) for i, ids in fitting.items()}, self._options.batch_tokens
        ):
            found = forward([fitting[index] for index in indices], indices)
            for index, values in zip(indices, found, strict=True):
                results[index] = (
                    values if isinstance(values, RewardError) else self._normalized(values)
                )
        return results

    def _fitted(self, ids: TokenIds) -> TokenIds:
        """Return the sequence, cut to the longest length if ``overlong`` allows this."""
        if not ids:
            raise RewardError(
                "an empty sequence; expected at least one token", code="reward-model/empty"
            )
        if unknown := [token for token in ids if not 0 <= token < self.loaded.vocab_size]:
            raise RewardError(
                f"token {unknown[0]} is none of the reward model's {self.loaded.vocab_size}; if its tokenizer is "
                "another one than the policy's, score text: input = text or chat",
                code="reward-model/other-tokens",
            )
        longest = self.loaded.max_length
        if longest is None or len(ids) <= longest:
            return ids
        match self._options.overlong:
            case "cut_start":
                return ids[-longest:]
            case "cut_end":
                return ids[:longest]
        raise RewardError(
            f"a sequence of {len(ids)} tokens; the reward model's max_length is {longest}. Raise it if the model "
            "allows, or set overlong to cut_start or cut_end",
            code="reward-model/too-long",
        )

    def _normalized(self, values: Sequence[float]) -> list[float] | RewardError:
        if wrong := [value for value in values if not math.isfinite(value)]:
            return RewardError(
                f"the reward model computed {wrong[0]}; in float16, try bfloat16",
                code="reward-model/not-finite",
            )
        return [(value - self.loaded.mean) / self.loaded.std for value in values]

    @property
    def _head(self) -> nn.Linear | None:
        """The head, if it can score every token; an encoder's classifier chooses itself which token it reads."""
        head = getattr(self.loaded.model, HEAD, None)
        return head if isinstance(head, nn.Linear) else None

    def _forward(self, sequences: Sequence[TokenIds], indices: Sequence[int]) -> list[list[float]]:
        if self._head is not None:
            last = [[last_token(ids, self.loaded.skipped_token)] for ids in sequences]
            return self._head_at(sequences, last)
        model: Any = self.loaded.model
        with torch.inference_mode():
            logits: Tensor = model(**self._inputs(sequences)).logits  # (B, 1)
        return logits.float().tolist()

    @torch.inference_mode()
    def _head_at(
        self, sequences: Sequence[TokenIds], places: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the head's output at the places of each sequence."""
        head = self._head
        assert head is not None
        inputs = self._inputs(sequences)
        hidden: Tensor = self.loaded.model.base_model(**inputs, use_cache=False).last_hidden_state
        rows = [row for row, chosen in enumerate(places) for _ in chosen]
        chosen = hidden[rows, list(chain.from_iterable(places))].float()  # (M, D)
        # In float32, since scores may differ by less than 16-bit numbers can resolve.
        bias = None if head.bias is None else head.bias.float()
        values = iter(nn.functional.linear(chosen, head.weight.float(), bias)[:, 0].tolist())
        return [list(islice(values, len(one))) for one in places]

    def _inputs(self, sequences: Sequence[TokenIds]) -> dict[str, Tensor]:
        lengths = [len(ids) for ids in sequences]
        pad = self.loaded.skipped_token or 0
        rows = [[*ids] + [pad] * (max(lengths) - len(ids)) for ids in sequences]
        input_ids = torch.tensor(rows, device=self._device)  # (B, T)
        there = torch.arange(max(lengths), device=self._device)
        attention_mask = there < torch.tensor(lengths, device=self._device)[:, None]  # (B, T)
        return {"input_ids": input_ids, "attention_mask": attention_mask.long()}


def _device_of(loaded: LoadedModel) -> torch.device:
    device: torch.device = next(loaded.model.parameters()).device
    return device


def last_token(ids: TokenIds, skipped: int | None) -> int:
    """Return the position of the last token that is not ``skipped``; 0 if there is none, as Transformers does."""
    return next((i for i in range(len(ids) - 1, -1, -1) if ids[i] != skipped), 0)


def batches(lengths: dict[int, int], max_tokens: int) -> Iterator[list[int]]:
    """Yield indices of similar length whose padded rows have at most ``max_tokens`` together, or one index alone."""
    batch: list[int] = []
    for index in sorted(lengths, key=lambda one: (lengths[one], one)):
        if batch and (len(batch) + 1) * lengths[index] > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
