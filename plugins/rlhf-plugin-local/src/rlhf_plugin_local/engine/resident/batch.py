"""The rows that are decoded together, seen from the host: admission, bursts of tokens, release.

Axes: ``R`` active rows, ``P`` distinct prompts, ``A`` tokens of a completion. Active rows are the first R: the last one
moves into a row that becomes free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlhf_core import RolloutError
from rlhf_core.contracts import SamplingParams
from rlhf_torch.models.vision_lm import VisionLM

from ..cache import round_up, storage_dtype
from ..next_token.sampling import DrawKind
from ..prefill import ROW_MULTIPLE, CacheWriter, PackedPrompts, PrefillLayout, distinct
from ..routes import CachedRoutes
from ..sequence import Finished, Prompt, Sequence, outcome_of
from ..states import PrefillSequences, RecurrentStates
from .bursts import BurstLength
from .ends import KeptEnds
from .graphs import GraphedSteps, Steps, graph_sizes
from .histories import Beginning, CachedHistories, Ended
from .paged_cache import PagedCache
from .pages import PAGE, PagePool, pages_of
from .resumed import ResumedPrefill
from .rows import DeviceRows, Look
from .state_pages import StatePages
from .step import TokenStep
from .wave import Wave

if TYPE_CHECKING:
    from rlhf_torch.experts.choices import ExpertChoices
    from rlhf_torch.models.modeling import CausalLM


@dataclass(slots=True, eq=False)
class _Seat:
    """A row of the batch as the host knows it."""

    sequence: Sequence
    pages: list[int]
    count: int = 0
    """Tokens that it had at the latest look."""
    is_broken: bool = False
    """True if its pages may hold what is not a number."""


class ResidentBatch:
    """Sequences in rows whose state lives on the device.

    Tokens are those of ``Batch``, whatever the length of a burst: a stop string ends a sequence at its token, and what
    the device wrote behind it is not read.

    Args:
        num_slots: sequences decoded together at most.
        max_length: prompt and response tokens of the longest sequence.
        num_pages: pages of the cache. A sequence is admitted when the pages of its longest possible form are free, so
            none has to be thrown out.
        share_prefixes: compute equal prompts that are admitted together once, keep their full pages once, and compute
            of a prompt only what follows the longest history that is still in the cache.
        keeps_ends: sequences that have ended are histories.
        compile: compile the model's layers, on a GPU.
        choices: of the model's routers, which completions tell; None: they do not.
    """

    def __init__(
        self,
        lm: CausalLM,
        eos_token_ids: tuple[int, ...],
        *,
        num_slots: int,
        max_length: int,
        num_pages: int,
        share_prefixes: bool,
        keeps_ends: bool,
        compile: bool,
        choices: ExpertChoices | None = None,
    ) -> None:
        self.lm = lm
        self.num_slots = num_slots
        self.version = 0
        self._share_prefixes = share_prefixes
        self._keeps_ends = keeps_ends
        device = lm.device
        num_rows = round_up(num_slots, ROW_MULTIPLE)
        dtype = storage_dtype(lm.compute_dtype, device)
        self._cache = PagedCache(num_rows, pages_of(max_length), num_pages, dtype, device)
        self._pool = PagePool(num_pages)
        self._rows = DeviceRows(num_rows, max_length, device)
        self._eos_token_ids = frozenset(eos_token_ids)
        is_eos = torch.zeros(lm.vocab_size, dtype=torch.bool, device=device)
        is_eos[list(eos_token_ids)] = True
        self._states = RecurrentStates(num_rows, device) if lm.recurrent else None
        self._state_pages = StatePages(self._states, self._cache) if self._states else None
        self._histories: CachedHistories | KeptEnds = (
            KeptEnds(self._pool, self._cache, self._state_pages)
            if self._state_pages
            else CachedHistories(self._pool)
        )
        self._routes = CachedRoutes(choices, num_pages, device) if choices else None
        self._step = TokenStep(lm, self._rows, self._cache, is_eos, self._states, self._routes)
        self._steps = (
            GraphedSteps(self._step, graph_sizes(num_rows), compile=compile)
            if device.type == "cuda"
            else Steps(self._step)
        )
        self._reader = lm.reader if isinstance(lm, VisionLM) else None
        self._seats: list[_Seat] = []
        """(R,) by row."""
        self._kinds: Counter[SamplingParams] = Counter()
        self._bursts = BurstLength()

    @property
    def active(self) -> list[Sequence]:
        """(R,) sequences by row."""
        return [seat.sequence for seat in self._seats]

    @property
    def num_free(self) -> int:
        return self.num_slots - len(self._seats)

    def num_known(self, prompt: Prompt) -> int:
        """Return the number of a prompt's tokens that a history has, so that they are not computed.

        The history does not give way until the next wave is admitted.
        """
        return self._known(prompt).length

    def pages_to_take(self, sequence: Sequence, shared: int) -> int:
        """Return the pages that a sequence of the next wave takes from the pool if it writes all that it may.

        Args:
            shared: number of its first tokens whose full pages it shares with a history, or with another sequence of
                its prompt in the wave.
        """
        return _most_pages(sequence) - shared // PAGE

    def has_room(self, pages: int) -> bool:
        """Return whether so many pages are free, histories given up for them that the next wave does not go on from."""
        return self._histories.make_room(pages)

    def set_version(self, version: int) -> None:
        """Label the tokens from here on."""
        self.version = version
        self.forget_histories()
        for seat in self._seats:
            seat.sequence.versions.append((seat.count, version))

    def forget_histories(self) -> None:
        """Compute prompts anew from now on: the keys of their beginnings are those of other weights."""
        self._histories.clear()

    @torch.no_grad()
    def admit(self, sequences: list[Sequence]) -> list[Finished]:
        """Compute the prompts, sample every sequence's first token, and return those that are finished already."""
        if not self._seats:
            self._steps.check_weights()
        first = len(self._seats)
        prompts, owner = distinct([s.prompt for s in sequences], share=self._share_prefixes)
        wave = self._seat(sequences, prompts, owner)
        self._histories.spare_none()
        packed = PackedPrompts.pack(prompts, self.lm.device, self._reader, wave.known_lengths)
        self._cache.seat(first, wave.pages)
        self._rows.seat(first, sequences, [packed.shifts[prompt] for prompt in owner])
        self._go_on(wave)
        writer = wave.writer(packed, self._cache, self.lm.compute_dtype)
        layout = self._prefill(wave, packed, writer)
        hidden = self._step.hidden(
            packed.tokens, packed.rope_positions, layout, packed.images
        )  # (N, D)
        if self._routes:
            self._routes.reserve(PAGE)
            places = self._cache.index(1, writer.rows, writer.positions)
            self._routes.write(places, writer.source)
        ends = hidden[torch.tensor(wave.ends(packed), device=self.lm.device)]
        rows = slice(first, len(self._seats))
        self._step.draw(ends, rows, DrawKind.of(self._kinds))
        if self._states and self._keeps_ends:
            self._histories.keep(wave.stopped_by_text(sequences))
        return self._collect()

    @torch.no_grad()
    def step(self) -> list[Finished]:
        """Sample a burst of tokens for every active row and return the sequences that this finished."""
        self._histories.spare_none()
        rows = round_up(len(self._seats), ROW_MULTIPLE)
        longest = max(seat.sequence.limit - seat.count for seat in self._seats)
        self._steps.run(rows, DrawKind.of(self._kinds), self._bursts.next(longest))
        finished = self._collect()
        self._bursts.seen(len(finished), rows)
        return finished

    @torch.no_grad()
    def drop(self, unwanted: Callable[[Sequence], bool]) -> None:
        """Free the rows of the sequences for which ``unwanted`` holds."""
        self._release([row for row, seat in enumerate(self._seats) if unwanted(seat.sequence)])

    @torch.no_grad()
    def clear(self) -> None:
        """Forget all sequences and free cache and graphs."""
        self._release(list(range(len(self._seats))))
        self._histories.clear()
        self._steps.forget()
        self._cache.clear()
        if self._states:
            self._states.clear()
        if self._routes:
            self._routes.clear()

    def _known(self, prompt: Prompt) -> Beginning:
        """Return the beginning of a prompt that is in the cache already."""
        return self._histories.find(*prompt) if self._share_prefixes else Beginning()

    def _seat(self, sequences: list[Sequence], prompts: list[Prompt], owner: list[int]) -> Wave:
        """Give sequences seats with pages, and return them as a wave: the first pages of each stand in the cache, or
        another sequence of the prompt fills them.

        Args:
            prompts: to compute.
            owner: number of each sequence's prompt.
        """
        known = [self._known(prompt) for prompt in prompts]
        filled = [list(each.pages[: each.length // PAGE]) for each in known]
        seats, num_shared = [], []
        for sequence, prompt in zip(sequences, owner, strict=True):
            shared = filled[prompt]
            self._pool.hold(shared)
            pages = shared + self._pool.take(_most_pages(sequence) - len(shared))
            if self._share_prefixes:
                filled[prompt] = pages[: len(sequence.prompt_ids) // PAGE]
            sequence.versions.append((0, self.version))
            seats.append(_Seat(sequence, pages))
            num_shared.append(len(shared))
        first = len(self._seats)
        # From here on an error finds the pages with their holders, who give them back.
        self._seats += seats
        self._kinds.update(sequence.sampling for sequence in sequences)
        return Wave(
            prompts=prompts,
            owner=owner,
            known=known,
            pages=[seat.pages for seat in seats],
            num_shared=num_shared,
            first_row=first,
        )

    def _go_on(self, wave: Wave) -> None:
        """Give sequences their own copies of what they change: the page in which a beginning ends, and the state."""
        if copies := wave.copies():
            source, target, filled = zip(*copies, strict=True)
            self._cache.copy(source, target, filled)
            if self._routes:
                pages = [torch.tensor(part, device=self.lm.device) for part in (source, target)]
                self._routes.move(pages[0], pages[1], used=PAGE)
        if self._state_pages and (states := wave.resumed_states):
            seated = wave.seated
            self._state_pages.load([seated[prompt] for prompt in states], [*states.values()])

    def _prefill(
        self, wave: Wave, packed: PackedPrompts, writer: CacheWriter
    ) -> PrefillLayout | ResumedPrefill:
        """Return the attention of a wave of prompts."""
        carried = None
        if self._states:
            rows = {prompt: wave.seated[prompt] for prompt in wave.resumed_states}
            carried = PrefillSequences(packed, self._states, wave.owner, wave.first_row, rows)
        if not any(wave.known_lengths):
            return PrefillLayout(packed, writer, carried)
        return ResumedPrefill(
            wave.resumed(packed),
            writer,
            self._cache,
            self.lm.compute_dtype,
            sequences=carried,
            blocks=packed.blocks,
        )

    def _collect(self) -> list[Finished]:
        """Look at the rows, and release those that have finished."""
        look = self._rows.look(len(self._seats))
        stops = self._stops(look)
        rows = [row for row, alive in enumerate(look.alive) if not alive or row in stops]
        counts = [stops.get(row, int(look.counts[row])) for row in rows]
        finished = self._finished(rows, counts, look) if rows else []
        for seat, count in zip(self._seats, look.counts, strict=True):
            seat.count = int(count)
        self._release(rows)
        return finished

    def _stops(self, look: Look) -> dict[int, int]:
        """Return the rows in whose new tokens a stop string appeared, and how many tokens they have up to there."""
        watched = [row for row, seat in enumerate(self._seats) if seat.sequence.watcher is not None]
        if not watched:
            return {}
        counts = [int(look.counts[row]) for row in watched]
        tokens, _ = self._rows.tokens(watched, max(counts))
        stops = {}
        for row, count, own in zip(watched, counts, tokens, strict=True):
            if (stop := _stop(self._seats[row], own[:count].tolist())) is not None:
                stops[row] = stop
        return stops

    def _finished(self, rows: list[int], counts: list[int], look: Look) -> list[Finished]:
        """Return what became of rows, each with so many tokens, and keep what a later turn may go on from."""
        tokens, logprobs = self._rows.tokens(rows, max(counts))
        finished, ended = [], []
        for row, count, *written in zip(rows, counts, tokens, logprobs, strict=True):
            seat = self._seats[row]
            own_tokens, own_logprobs = (part[:count].copy() for part in written)
            read = len(seat.sequence.prompt_ids) + count - 1  # all but the last
            routes = self._routes.read(seat.pages, read) if self._routes else None
            outcome = outcome_of(
                seat.sequence, own_tokens, own_logprobs, self._eos_token_ids, routes
            )
            seat.is_broken = isinstance(outcome, RolloutError)
            # A sequence that began under other weights has keys of theirs, and a state is that behind the last token
            # which the device has read.
            is_history = len(seat.sequence.versions) == 1 and not (
                self._states and count < look.counts[row]
            )
            if self._keeps_ends and is_history and not seat.is_broken:
                ended.append(self._left(row, [*seat.sequence.prompt_ids, *own_tokens[:-1]]))
            finished.append((seat.sequence, outcome))
        self._histories.keep(ended)
        return finished

    def _left(self, row: int, read: list[int]) -> Ended:
        """Return what a row leaves behind, without the pages behind the tokens that it has read: those are free now."""
        pages = self._seats[row].pages
        used = pages_of(len(read))
        self._pool.release(pages[used:])
        del pages[used:]
        return Ended(read, pages, row, self._seats[row].sequence.request.media)

    def _release(self, rows: list[int]) -> None:
        """Free rows, closing the gaps with the last active ones."""
        if not rows:
            return
        gone = set(rows)
        for row in rows:
            seat = self._seats[row]
            freed = self._pool.release(seat.pages)
            if seat.is_broken and freed:
                self._cache.erase(freed)
            if seat.is_broken and self._states:
                self._states.erase(row)
            self._kinds[seat.sequence.sampling] -= 1
        self._kinds += Counter()  # drops the kinds that no row has any more
        kept = len(self._seats) - len(rows)
        target = [row for row in rows if row < kept]
        source = [row for row in range(kept, len(self._seats)) if row not in gone]
        for gap, last in zip(target, source, strict=True):
            self._seats[gap] = self._seats[last]
        del self._seats[kept:]
        if target:
            places = [torch.tensor(part, device=self.lm.device) for part in (source, target)]
            self._rows.move(*places)
            self._cache.move(*places)
            if self._states:
                self._states.move(*places)
        self._rows.leave(kept)
        self._cache.leave(kept)


def _most_pages(sequence: Sequence) -> int:
    """Return the pages of a sequence that writes all that it may and shares nothing."""
    return pages_of(len(sequence.prompt_ids) + sequence.limit)


def _stop(seat: _Seat, tokens: list[int]) -> int | None:
    """Return how many tokens a sequence has with the one that completes a stop string; None: it goes on.

    Args:
        tokens: all so far; the host has seen ``seat.count`` of them.
    """
    watcher = seat.sequence.watcher
    assert watcher is not None
    for place in range(seat.count, len(tokens)):
        if watcher.push(tokens[place]):
            return place + 1
    return None
