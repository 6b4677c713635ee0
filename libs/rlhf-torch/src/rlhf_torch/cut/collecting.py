"""Exchange of cut parameters among ranks: each parameter is collected on one rank and cut again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..ranks.ranks import Ranks
from .fragment import Fragment


class Collected(NamedTuple):
    """A whole parameter on its owner; false on a rank that owns none in the round."""

    vector: int
    """Index of the vectors in which the ranks have their fragments of it."""
    values: list[Tensor]
    """The parameter once for each of the tensors that were collected, on the owner's device."""

    def __bool__(self) -> bool:
        return bool(self.values)


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
        self._names = names
        self._vector_of = {name: vector for vector, found in names.items() for name in found}

    def rounds(self, vectors: Collection[int]) -> list[list[str]]:
        """Return the rounds of the parameters that lie in the ranks' vectors of these indices, by name."""
        found = [self._names[vector] for vector in vectors if vector in self._names]
        return self._dealt({name for names in found for name in names})

    def collect(self, names: Sequence[str], vectors: Mapping[int, Sequence[Tensor]]) -> Collected:
        """Return the whole parameter that this rank owns in the round.

        Args:
            names: the round.
            vectors: weights, their gradient and optimizer state by the index of the vector, all in the layout of the
                fragments; they may be in host memory.
        """
        own, holders = self._own(names)
        index = -1 if own is None else self._vector_of[own]
        count = len(vectors.get(index, ()))
        sent = [_parts(fragment, vectors) for fragment in self._fragments(names)]
        received = self._swap(sent, [holder.length * count if holder else 0 for holder in holders])
        if own is None:
            return Collected(index, [])
        whole = torch.empty(count, self._shapes[own].numel(), device=self._ranks.device)
        for holder, part in zip(holders, received, strict=True):
            if holder is not None:
                whole[:, holder.start : holder.stop] = part.view(count, -1)
        return Collected(index, [values.view(self._shapes[own]) for values in whole])

    def give_back(
        self,
        names: Sequence[str],
        wholes: Sequence[Tensor],
        vectors: Mapping[int, Sequence[Tensor]],
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
        counts = [0 if one is None else len(vectors[one.vector]) * one.length for one in fragments]
        received = self._swap(sent, counts)
        for fragment, part in zip(fragments, received, strict=True):
            if fragment is None:
                continue
            values = part.view(-1, fragment.length)
            for target, value in zip(_parts(fragment, vectors), values, strict=True):
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


def _parts(fragment: Fragment | None, vectors: Mapping[int, Sequence[Tensor]]) -> list[Tensor]:
    """Return a view of the fragment in each of its vectors."""
    return [] if fragment is None else [fragment.of(one) for one in vectors[fragment.vector]]
