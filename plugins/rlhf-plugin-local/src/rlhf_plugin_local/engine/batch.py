"""The rows that are decoded together: admission, one step, release. Synchronous; knows nothing of requests' callers.

Axes: ``R`` active rows, ``S`` rows there is room for, ``P`` distinct prompts, ``A`` tokens of a completion, ``V``
vocabulary. Active rows are the first R: the last one moves into a row that becomes free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlhf_core.contracts import SamplingParams
from rlhf_torch.models.vision_lm import VisionLM

from .cache import DecodeLayout, KVCache, round_up, storage_dtype
from .next_token.guides import Guide
from .next_token.sampling import DrawKind, draw_rows
from .prefill import ROW_MULTIPLE, CacheWriter, PackedPrompts, PrefillLayout, distinct
from .routes import CachedRoutes
from .sequence import FLOATS, INTEGERS, Finished, Prompt, Sequence, outcome_of
from .states import DecodeSequences, PrefillSequences, RecurrentStates

if TYPE_CHECKING:
    from rlhf_torch.experts.choices import ExpertChoices
    from rlhf_torch.models.modeling import CausalLM
    from rlhf_torch.packed.attention import Layout
    from rlhf_torch.vision.pictures import PackedImages

FEWEST_POSITIONS = 64
"""Positions of the cache that a step reads at least. torch computes batched products of less than 400 multiplications
by another method, with other last bits; a sequence must not notice when the batch's longest one crosses that."""


class Batch:
    """Sequences in rows of a KV cache.

    Args:
        num_slots: sequences decoded together at most.
        block: the part of the cache that is read grows by this many positions.
        share_prefixes: compute equal prompts that are admitted together once.
        choices: of the model's routers, which completions tell; None: they do not.
    """

    def __init__(
        self,
        lm: CausalLM,
        eos_token_ids: tuple[int, ...],
        *,
        num_slots: int,
        block: int,
        share_prefixes: bool,
        choices: ExpertChoices | None = None,
    ) -> None:
        self.lm = lm
        self.num_slots = num_slots
        self.version = 0
        self.active: list[Sequence] = []
        """(R,) by row."""
        self._block = block
        self._share_prefixes = share_prefixes
        self._num_rows = round_up(num_slots, ROW_MULTIPLE)
        device = lm.device
        self._device = device
        self._cache = KVCache(
            self._num_rows, block, storage_dtype(lm.compute_dtype, device), device
        )
        self._states = RecurrentStates(self._num_rows, device) if lm.recurrent else None
        self._routes = CachedRoutes(choices, self._num_rows, device) if choices else None
        self._eos_token_ids = frozenset(eos_token_ids)
        self._is_eos = torch.zeros(lm.vocab_size, dtype=torch.bool, device=device)
        self._is_eos[list(eos_token_ids)] = True
        self._reader = lm.reader if isinstance(lm, VisionLM) else None
        self._integers = torch.zeros(
            self._num_rows, len(INTEGERS), dtype=torch.int64, device=device
        )
        self._floats = torch.zeros(self._num_rows, len(FLOATS), device=device)
        columns = dict(zip(INTEGERS, self._integers.unbind(1), strict=True))
        columns |= dict(zip(FLOATS, self._floats.unbind(1), strict=True))
        self._column: dict[str, Tensor] = columns
        self._tokens = torch.zeros(self._num_rows, 0, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(self._num_rows, 0, device=device)
        self._longest = 0
        """Cache positions that the next step needs."""
        self._kinds: Counter[SamplingParams] = Counter()
        self._watched: list[int] = []
        """Rows with stop strings."""

    @property
    def num_free(self) -> int:
        return self.num_slots - len(self.active)

    def num_known(self, prompt: Prompt) -> int:
        """Return 0: the cache keeps no histories."""
        return 0

    def pages_to_take(self, sequence: Sequence, shared: int) -> int:
        """Return 0: the cache has rows, no pages."""
        return 0

    def has_room(self, pages: int) -> bool:
        """Return True: the cache grows with what is admitted."""
        return True

    def forget_histories(self) -> None:
        """Nothing to do: rows are emptied when their sequence ends."""

    def set_version(self, version: int) -> None:
        """Label the tokens from here on."""
        self.version = version
        if self.active:
            indices = self._column["index"][: len(self.active)].tolist()
            for sequence, index in zip(self.active, indices, strict=True):
                sequence.versions.append((index, version))

    @torch.inference_mode()
    def admit(self, sequences: list[Sequence]) -> list[Finished]:
        """Compute the prompts, sample every sequence's first token, and return those that are finished already."""
        first = len(self.active)
        prompts, owner = distinct([s.prompt for s in sequences], share=self._share_prefixes)
        lengths = [len(sequence.prompt_ids) for sequence in sequences]
        self._cache.reserve(max(lengths) + 1)
        packed = PackedPrompts.pack(prompts, self._device, self._reader)
        starts = [packed.starts[prompt] for prompt in owner]
        writer = CacheWriter.of(starts, lengths, first, self._cache, self.lm.compute_dtype)
        states = self._states
        carried = PrefillSequences(packed, states, owner, first) if states else None
        layout = PrefillLayout(packed, writer, carried)
        hidden = self._hidden(packed.tokens, packed.rope_positions, layout, packed.images)  # (N, D)
        if self._routes:
            self._routes.reserve(self._cache.capacity)
            where = self._cache.index(1, writer.rows, writer.positions)
            self._routes.write(where, writer.source)
        last = [
            start + len(prompt.token_ids) - 1
            for start, prompt in zip(packed.starts, prompts, strict=True)
        ]
        last += last[-1:] * (-len(last) % ROW_MULTIPLE)
        logits = self.lm.logits(hidden[torch.tensor(last, device=self._device)])  # (P, V)
        self._seat(sequences, [packed.shifts[prompt] for prompt in owner])
        return self._sample(first, logits[torch.tensor(owner, device=self._device)])

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Sample one token for every active row and return the sequences that this finished."""
        R = round_up(len(self.active), ROW_MULTIPLE)
        used = round_up(max(self._longest, FEWEST_POSITIONS), self._block)
        self._cache.reserve(used)
        positions = self._column["position"][:R].contiguous()
        carried = DecodeSequences(self._states, R) if self._states else None
        layout = DecodeLayout(self._cache, positions, used, self.lm.compute_dtype, carried)
        tokens = self._column["token"][:R].contiguous()
        places = positions + self._column["shift"][:R]
        hidden = self._hidden(tokens, places, layout)  # (R, D)
        if self._routes:
            self._routes.reserve(self._cache.capacity)
            rows = torch.arange(R, device=self._device)
            self._routes.write(self._cache.index(1, rows, positions))
        self._longest += 1
        return self._sample(0, self.lm.logits(hidden)[: len(self.active)])

    @torch.inference_mode()
    def drop(self, unwanted: Callable[[Sequence], bool]) -> None:
        """Free the rows of the sequences for which ``unwanted`` holds."""
        self._release([row for row, sequence in enumerate(self.active) if unwanted(sequence)])

    @torch.inference_mode()
    def clear(self) -> None:
        """Forget all sequences and free the cache."""
        self.active.clear()
        self._kinds.clear()
        self._watched.clear()
        self._longest = 0
        self._integers.zero_()
        self._cache.clear()
        if self._states:
            self._states.clear()
        if self._routes:
            self._routes.clear()
        self._tokens, self._logprobs = self._tokens[:, :0].clone(), self._logprobs[:, :0].clone()

    def _hidden(
        self, tokens: Tensor, positions: Tensor, layout: Layout, images: PackedImages | None = None
    ) -> Tensor:
        if self._routes is None:
            return self.lm.hidden(tokens, positions, layout, images)
        return self._routes.hidden(self.lm, tokens, positions, layout, images)

    def _seat(self, sequences: list[Sequence], shifts: list[int]) -> None:
        """Fill the state of the rows behind the active ones.

        Args:
            shifts: of each sequence, what is added to a position for rotary embeddings.
        """
        rows = slice(len(self.active), len(self.active) + len(sequences))
        integers, floats = [], []
        for sequence, shift in zip(sequences, shifts, strict=True):
            sequence.versions.append((0, self.version))
            integers.append(sequence.integers(shift))
            floats.append(sequence.floats)
            self._longest = max(self._longest, len(sequence.prompt_ids) + 1)
        self._integers[rows] = torch.tensor(integers, device=self._device)
        self._floats[rows] = torch.tensor(floats, device=self._device)
        self._kinds.update(sequence.sampling for sequence in sequences)
        self.active.extend(sequences)
        self._find_watched()
        self._reserve_output(max(sequence.limit for sequence in sequences))

    def _find_watched(self) -> None:
        if any(kind.stop for kind in self._kinds):
            self._watched = [row for row, s in enumerate(self.active) if s.watcher is not None]
        else:
            self._watched = []

    def _reserve_output(self, length: int) -> None:
        missing = length - self._tokens.shape[1]
        if missing > 0:
            self._tokens, self._logprobs = (
                torch.nn.functional.pad(kept, (0, missing))
                for kept in (self._tokens, self._logprobs)
            )

    def _sample(self, first: int, logits: Tensor) -> list[Finished]:
        """Draw one token for each row from ``first`` on and release the rows that it finishes."""
        rows = slice(first, first + len(logits))
        guided = [
            (row, guide)
            for row, sequence in enumerate(self.active[rows])
            if (guide := sequence.guide) is not None
        ]
        if guided:
            logits = self._restricted(logits, guided, first)
        tokens, logprobs = self._draw(logits, rows)  # (R,)
        count = self._column["index"][rows]
        index = count[:, None]
        self._tokens[rows].scatter_(1, index, tokens[:, None].int())
        self._logprobs[rows].scatter_(1, index, logprobs[:, None])
        self._column["token"][rows] = tokens
        self._integers[rows, 1:3] += 1  # position and index
        done = self._is_eos[tokens] | (count >= self._column["limit"][rows]) | ~logprobs.isfinite()
        if self._watched:
            self._watch(first, done)
        for row, guide in guided:
            guide.push(int(tokens[row]))
            done[row] |= guide.is_stuck
        finished_rows = [first + row for row in done.nonzero()[:, 0].tolist()]
        finished = [self._finish(row) for row in finished_rows]
        self._release(finished_rows)
        return finished

    def _restricted(self, logits: Tensor, guided: list[tuple[int, Guide]], first: int) -> Tensor:
        """Return the logits (R, V) without what the grammars of some rows forbid."""
        logits = logits.clone()
        for row, guide in guided:
            temperature = self.active[first + row].sampling.temperature
            logits[row] = guide.restrict(logits[row], temperature)
        return logits

    def _draw(self, logits: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Tokens (R,) and their log-probabilities (R,)."""
        columns = {name: column[rows] for name, column in self._column.items()}
        return draw_rows(logits, columns, DrawKind.of(self._kinds), self._is_eos)

    def _watch(self, first: int, done: Tensor) -> None:
        """Set ``done`` for the rows whose text contains one of their stop strings."""
        rows = [row for row in self._watched if first <= row < first + len(done)]
        stopped = []
        for row, token in zip(rows, self._integers[rows][:, 0].tolist(), strict=True):
            watcher = self.active[row].watcher
            assert watcher is not None
            if watcher.push(token):
                stopped.append(row - first)
        done[stopped] = True

    def _finish(self, row: int) -> Finished:
        sequence = self.active[row]
        count = int(self._column["index"][row])
        tokens = self._tokens[row, :count].cpu().numpy().copy()
        logprobs = self._logprobs[row, :count].cpu().numpy().copy()
        if not np.isfinite(logprobs[-1]):
            self._cache.erase(row)
            if self._states:
                self._states.erase(row)
        read = len(sequence.prompt_ids) + count - 1  # all but the last
        routes = self._routes.read([row], read) if self._routes else None
        return sequence, outcome_of(sequence, tokens, logprobs, self._eos_token_ids, routes)

    def _release(self, rows: list[int]) -> None:
        """Free rows, closing the gaps with the last active ones."""
        if not rows:
            return
        self._kinds.subtract(self.active[row].sampling for row in rows)
        self._kinds += Counter()  # drops the kinds that no row has any more
        kept = len(self.active) - len(rows)
        freed = set(rows)
        target = [row for row in rows if row < kept]
        source = [row for row in range(kept, len(self.active)) if row not in freed]
        for gap, last in zip(target, source, strict=True):
            self.active[gap] = self.active[last]
        del self.active[kept:]
        if target:
            self._move(source, target)
        # Rows that are computed only to fill up a multiple of 8 then hold valid state.
        self._integers[kept:, :2] = 0
        self._column["shift"][kept:] = 0
        self._find_watched()
        longest = self._column["position"][:kept].max().item() if kept else -1
        self._longest = int(longest) + 1

    def _move(self, source: list[int], target: list[int]) -> None:
        from_rows = torch.tensor(source, device=self._device)
        to_rows = torch.tensor(target, device=self._device)
        for kept in (self._integers, self._floats, self._tokens, self._logprobs):
            kept[to_rows] = kept[from_rows]
        self._cache.move(from_rows, to_rows, self._longest)
        if self._states:
            self._states.move(from_rows, to_rows)
        if self._routes:
            self._routes.move(from_rows, to_rows, self._longest)
