"""Cut parameters, put together on one rank each and taken apart again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .fragments import Fragment
from .ranks import Ranks


class Collecting:
    """Knows which rank holds which part of which parameter. All ranks make the same calls in the same order.

    Args:
        fragments: this rank's.
        shapes: of the whole parameters.
    """

    def __init__(
        self, fragments: Sequence[Fragment], shapes: Mapping[str, torch.Size], ranks: Ranks
    ) -> None:
        self._shapes, self._ranks = shapes, ranks
        held = [{fragment.name: fragment for fragment in fragments}]
        if ranks.world_size > 1:
            held *= ranks.world_size
            dist.all_gather_object(held, held[ranks.rank])
        self._held: list[dict[str, Fragment]] = held
        names: dict[int, set[str]] = defaultdict(set)
        for part in (part for parts in held for part in parts.values()):
            names[part.vector].add(part.name)
        self._rounds = {vector: self._dealt(found) for vector, found in names.items()}

    def rounds(self, vector: int) -> list[list[str]]:
        """Return the names of the parameters in the ranks' vectors of this index, at most one for each rank at a time.

        The n-th of a round is the n-th rank's to update.
        """
        return self._rounds.get(vector, [])

    def collect(self, names: Sequence[str], vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's own parameter of the round, whole, as each of ``vectors`` has it; nothing without one.

        The vectors have the layout of the fragments: weights, their gradient, state. They may lie on the host; what is
        returned is on this rank's device.
        """
        own, holders = self._own(names)
        sent = [_parts(fragment, vectors) for fragment in self._fragments(names)]
        received = self._swap(sent, [_length(holder) * len(vectors) for holder in holders])
        if own is None:
            return []
        whole = torch.empty(len(vectors), self._shapes[own].numel(), device=self._ranks.device)
        for holder, part in zip(holders, received, strict=True):
            if holder is not None:
                whole[:, holder.start : holder.stop] = part.view(len(vectors), -1)
        return [values.view(self._shapes[own]) for values in whole]

    def give_back(
        self, names: Sequence[str], wholes: Sequence[Tensor], vectors: Sequence[Tensor]
    ) -> None:
        """Undo ``collect``: write each rank's parts of all parameters of the round into its ``vectors``.

        Args:
            wholes: of this rank's own parameter, one for each of ``vectors``; nothing without one.
        """
        _, holders = self._own(names)
        sent = [
            [] if holder is None else [w.reshape(-1)[holder.start : holder.stop] for w in wholes]
            for holder in holders
        ]
        fragments = self._fragments(names)
        received = self._swap(sent, [_length(one) * len(vectors) for one in fragments])
        for fragment, part in zip(fragments, received, strict=True):
            values = part.view(len(vectors), -1)
            for target, value in zip(_parts(fragment, vectors), values, strict=False):
                target.copy_(value)

    def _dealt(self, names: set[str]) -> list[list[str]]:
        """Large ones come first, so that those of a round are alike and no rank waits for long."""
        ordered = sorted(names, key=lambda name: (-self._shapes[name].numel(), name))
        size = self._ranks.world_size
        return [ordered[at : at + size] for at in range(0, len(ordered), size)]

    def _own(self, names: Sequence[str]) -> tuple[str | None, list[Fragment | None]]:
        """Return the name in a round that is this rank's to update, if there is one, and every rank's part of it."""
        own = names[self._ranks.rank] if self._ranks.rank < len(names) else None
        return own, [None if own is None else held.get(own) for held in self._held]

    def _fragments(self, names: Sequence[str]) -> list[Fragment | None]:
        """This rank's parts of what each rank has to update in a round."""
        mine = self._held[self._ranks.rank]
        nobodys = self._ranks.world_size - len(names)
        return [*(mine.get(name) for name in names), *[None] * nobodys]

    def _swap(self, sent: Sequence[Sequence[Tensor]], counts: Sequence[int]) -> Sequence[Tensor]:
        """Send the n-th tensors to the n-th rank, and return the ``counts[n]`` numbers that come from it."""
        device = self._ranks.device
        parts = [part.to(device) for parts in sent for part in parts]
        outgoing = torch.cat(parts) if parts else torch.empty(0, device=device)
        if self._ranks.world_size == 1:
            return [outgoing]
        lengths = [sum(part.numel() for part in parts) for parts in sent]
        incoming = torch.empty(sum(counts), device=device)
        dist.all_to_all_single(incoming, outgoing, list(counts), lengths)
        return torch.split(incoming, list(counts))


def _parts(fragment: Fragment | None, vectors: Sequence[Tensor]) -> list[Tensor]:
    """What a rank has of a parameter in each of its vectors, as views."""
    return [] if fragment is None else [fragment.of(vector) for vector in vectors]


def _length(fragment: Fragment | None) -> int:
    return 0 if fragment is None else fragment.length
