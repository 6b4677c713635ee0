"""Scores of token sequences by a reward model.

The score is the head's output at the sequence's last token: ``(w . h_last - mean) / std``. Rows are padded on the
right, where padding cannot reach a real token: neither a causal model nor the attention mask lets it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import RewardError

from .config import ModelOptions
from .loading import LoadedModel, load_model

TokenIds = Sequence[int]


class Scorer:
    """A loaded reward model that scores sequences. Only one thread may use a scorer at a time."""

    def __init__(self, options: ModelOptions) -> None:
        self._options = options
        self.loaded: LoadedModel = load_model(options)
        self._device = next(self.loaded.model.parameters()).device

    def describe(self) -> str:
        """Return the model's path, device and dtype, for a message."""
        dtype = str(self.loaded.model.dtype).removeprefix("torch.")
        return f"{self._options.path} on {self._device}, {dtype}"

    def scores(self, sequences: Sequence[TokenIds]) -> list[float | RewardError]:
        """Return each sequence's score; for a sequence without a score, an error with the reason."""
        results: list[float | RewardError] = [RewardError("not scored")] * len(sequences)
        fitting: dict[int, TokenIds] = {}
        for index, sequence in enumerate(sequences):
            try:
                fitting[index] = self._fitted(sequence)
            except RewardError as error:
                results[index] = error
        for indices in batches(
            {i: len(ids) for i, ids in fitting.items()}, self._options.batch_tokens
        ):
            values = self._forward([fitting[index] for index in indices])
            for index, value in zip(indices, values, strict=True):
                results[index] = self._normalized(value)
        return results

    def _fitted(self, ids: TokenIds) -> TokenIds:
        """Return the sequence, cut to the longest length if ``overlong`` allows this.

        Raises:
            RewardError: the sequence is empty or too long, or has a token that the model does not know.
        """
        if not ids:
            raise RewardError("an empty sequence; expected at least one token")
        if unknown := [token for token in ids if not 0 <= token < self.loaded.vocab_size]:
            raise RewardError(
                f"token {unknown[0]} is none of the reward model's {self.loaded.vocab_size}; if its tokenizer is "
                "another one than the policy's, score text: input = text or chat"
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
            "allows, or set overlong to cut_start or cut_end"
        )

    def _normalized(self, value: float) -> float | RewardError:
        if not math.isfinite(value):
            return RewardError(f"the reward model computed {value}; in float16, try bfloat16")
        return (value - self.loaded.mean) / self.loaded.std

    @torch.inference_mode()
    def _forward(self, sequences: Sequence[TokenIds]) -> list[float]:
        lengths = [len(ids) for ids in sequences]
        pad = self.loaded.skipped_token or 0
        rows = [[*ids] + [pad] * (max(lengths) - len(ids)) for ids in sequences]
        input_ids = torch.tensor(rows, device=self._device)  # (B, T)
        there = torch.arange(max(lengths), device=self._device)
        attention_mask = there < torch.tensor(lengths, device=self._device)[:, None]  # (B, T)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask.long()}
        model: Any = self.loaded.model
        head = getattr(model, "score", None)
        if not isinstance(head, nn.Linear):
            # An encoder's classifier chooses itself which token it reads.
            return model(**inputs).logits[:, 0].float().tolist()  # type: ignore[no-any-return]
        hidden: Tensor = model.base_model(**inputs, use_cache=False).last_hidden_state  # (B, T, D)
        last = [last_token(ids, self.loaded.skipped_token) for ids in sequences]
        chosen = hidden[range(len(last)), last].float()  # (B, D)
        # In float32, since scores may differ by less than 16-bit numbers can resolve.
        bias = None if head.bias is None else head.bias.float()
        return nn.functional.linear(chosen, head.weight.float(), bias)[:, 0].tolist()


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
