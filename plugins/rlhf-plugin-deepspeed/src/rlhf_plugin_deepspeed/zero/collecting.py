"""Exchange of cut parameters among ranks: each parameter is collected on one rank and cut again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..parallel.ranks import Ranks
from .fragments import Fragment


class Collecting:
    """Table of the fragments that every rank holds, and the collective calls that move them.

    All ranks make the same calls in the same order. A parameter's *owner* is the rank that updates the whole
    parameter. A *round* is a list of parameters with different owners: the n-th is owned by rank n.

    Args:
        fragments: the fragments of this rank.
        shapes: the shape of each whole parameter.
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
        """Return the rounds of the parameters that lie in the ranks' vectors of this index, by name."""
        return self._rounds.get(vector, [])

    def collect(self, names: Sequence[str], vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return the whole parameter that this rank owns in the round, once for each of ``vectors``.

        The list is empty on a rank that owns no parameter of the round. The results are on this rank's device.

        Args:
            names: the round.
            vectors: weights, their gradient and optimizer state, all in the layout of the fragments; they may be in
                host memory.
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
        """Write the parameters of the round back: each rank copies its fragments of them into its ``vectors``.

        Args:
            wholes: new values of the parameter that this rank owns, one tensor for each of ``vectors``; empty on a
                rank that owns none.
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
        """Return rounds by falling size: parameters of a round are alike, so that no rank waits long for another."""
        ordered = sorted(names, key=lambda name: (-self._shapes[name].numel(), name))
        size = self._ranks.world_size
        return [ordered[at : at + size] for at in range(0, len(ordered), size)]

    def _own(self, names: Sequence[str]) -> tuple[str | None, list[Fragment | None]]:
        """Return the name of the parameter that this rank owns in the round, and every rank's fragment of it."""
        own = names[self._ranks.rank] if self._ranks.rank < len(names) else None
        return own, [None if own is None else held.get(own) for held in self._held]

    def _fragments(self, names: Sequence[str]) -> list[Fragment | None]:
        """Return this rank's fragment of each parameter of the round, in the order of the owners."""
        mine = self._held[self._ranks.rank]
        nobodys = self._ranks.world_size - len(names)
        return [*(mine.get(name) for name in names), *[None] * nobodys]

    def _swap(self, sent: Sequence[Sequence[Tensor]], counts: Sequence[int]) -> Sequence[Tensor]:
        """Send ``sent[n]`` to rank n, and return the ``counts[n]`` elements that rank n has sent, for each n."""
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
    """Return a view of the fragment in each of the vectors."""
    return [] if fragment is None else [fragment.of(vector) for vector in vectors]


def _length(fragment: Fragment | None) -> int:
    return 0 if fragment is None else fragment.length
