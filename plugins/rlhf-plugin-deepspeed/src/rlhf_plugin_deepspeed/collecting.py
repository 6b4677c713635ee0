"""Cut parameters, put together on one rank each and taken apart again."""

from __future__ import annotations

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

    def rounds(self, vector: int) -> list[list[str]]:
        """Return the names of the parameters of the ranks' vectors of this index, at most one for each rank at a time.

        The n-th of a round is the n-th rank's to update. Large ones come first, so that those of a round are alike and
        no rank waits for long.
        """
        names = {
            part.name for held in self._held for part in held.values() if part.vector == vector
        }
        ordered = sorted(names, key=lambda name: (-self._shapes[name].numel(), name))
        world_size = self._ranks.world_size
        return [ordered[at : at + world_size] for at in range(0, len(ordered), world_size)]

    def own(self, names: Sequence[str]) -> str | None:
        """Return the name of a round that is this rank's to update, if there is one."""
        return names[self._ranks.rank] if self._ranks.rank < len(names) else None

    def collect(self, names: Sequence[str], vectors: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's own parameter of the round, whole, as each of ``vectors`` has it; nothing without one.

        The vectors have the layout of the fragments: weights, their gradient, state. They may lie on the host; what is
        returned is on this rank's device.
        """
        mine = self._held[self._ranks.rank]
        sent = [_cut(mine.get(name), vectors) for name in names]
        own = self.own(names)
        holders = [None if own is None else held.get(own) for held in self._held]
        parts = self._swap(sent, [_length(holder) * len(vectors) for holder in holders])
        if own is None:
            return []
        shape = self._shapes[own]
        whole = torch.empty(len(vectors), shape.numel(), device=self._ranks.device)
        for holder, part in zip(holders, parts, strict=True):
            if holder is not None:
                whole[:, holder.start : holder.stop] = part.view(len(vectors), -1)
        return [values.view(shape) for values in whole]

    def give_back(
        self, names: Sequence[str], wholes: Sequence[Tensor], vectors: Sequence[Tensor]
    ) -> None:
        """Undo ``collect``: write each rank's parts of all parameters of the round into its ``vectors``.

        Args:
            wholes: of this rank's own parameter, one for each of ``vectors``; nothing without one.
        """
        own = self.own(names)
        holders = [None if own is None else held.get(own) for held in self._held]
        sent = [_part(holder, wholes) for holder in holders]
        fragments = [self._held[self._ranks.rank].get(name) for name in names]
        parts = self._swap(sent, [_length(fragment) * len(vectors) for fragment in fragments])
        for fragment, part in zip(fragments, parts, strict=False):
            if fragment is not None:
                for vector, values in zip(vectors, part.view(len(vectors), -1), strict=True):
                    fragment.of(vector).copy_(values)

    def _swap(self, sent: Sequence[Tensor], counts: Sequence[int]) -> Sequence[Tensor]:
        """Send the n-th tensor to the n-th rank, and return the ``counts[n]`` numbers that came from it."""
        size = self._ranks.world_size
        if size == 1:
            return [part.to(self._ranks.device) for part in sent]
        lengths = [part.numel() for part in sent] + [0] * (size - len(sent))
        wanted = [*counts, *[0] * (size - len(counts))]
        outgoing = torch.cat([part.to(self._ranks.device) for part in sent])
        incoming = torch.empty(sum(wanted), device=self._ranks.device)
        dist.all_to_all_single(incoming, outgoing, wanted, lengths)
        return incoming.split(wanted)


def _cut(fragment: Fragment | None, vectors: Sequence[Tensor]) -> Tensor:
    """What a rank has of a parameter in each of its vectors, end to end."""
    if fragment is None:
        return vectors[0].new_empty(0)
    return torch.cat([fragment.of(vector) for vector in vectors])


def _part(holder: Fragment | None, wholes: Sequence[Tensor]) -> Tensor:
    """What belongs to a rank of each of the whole tensors, end to end."""
    if holder is None or not wholes:
        return torch.empty(0)
    return torch.cat([whole.flatten()[holder.start : holder.stop] for whole in wholes])


def _length(fragment: Fragment | None) -> int:
    return 0 if fragment is None else fragment.length
