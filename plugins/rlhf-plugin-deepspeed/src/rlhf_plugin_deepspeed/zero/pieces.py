"""Pieces: consecutive elements of a parameter group's flat vector, whose gradients ranks exchange in one call.

A large parameter is cut into pieces of its own, which are sent from where autograd wrote the gradient. Small neighbors
lie together in one piece, and their gradients are copied there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

SMALL = 4
"""A parameter of less than this part of a piece lies together with its neighbors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Elements of one parameter in a piece."""

    name: str
    start: int
    """Index of the first element in the flattened parameter."""
    offset: int
    """Index of the first element in the piece."""
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Elements that the ranks exchange together."""

    group: int
    """Index of the parameter group."""
    start: int
    """Index of the first element in the group's vector."""
    length: int
    places: tuple[Place, ...]

    def part(self, rank: int, ranks: int) -> tuple[int, int]:
        """Return begin and end, in the group's vector, of the elements that a rank adds up."""
        size = self.part_length(ranks)
        stop = self.start + self.length
        return min(self.start + rank * size, stop), min(self.start + (rank + 1) * size, stop)

    def part_length(self, ranks: int) -> int:
        """Return the number of elements that each rank adds up, padding of the last one included."""
        return -(-self.length // ranks)


def cut(
    named: Mapping[str, nn.Parameter], vectors: Sequence[Tensor], largest: int, ranks: int
) -> list[Piece]:
    """Return the pieces of all parameters in the order in which a backward pass completes them, last modules first.

    The order is the same on every rank, whatever autograd does first.

    Args:
        named: all trained parameters, in the order of the forward pass.
        vectors: the flat vector of each parameter group, of which the parameters are views.
        largest: the number of elements that a piece may have.
    """
    pieces: list[Piece] = []
    order = {name: number for number, name in enumerate(named)}
    for group, vector in enumerate(vectors):
        within = _offsets(named, vector)
        together: list[tuple[str, int, int]] = []
        for name, start, length in within:
            if length * SMALL < largest:
                if together and start + length - together[0][1] > largest:
                    pieces.append(_joined(group, together))
                    together = []
                together.append((name, start, length))
                continue
            if together:
                pieces.append(_joined(group, together))
                together = []
            pieces += _parts(group, name, start, length, largest, ranks)
        if together:
            pieces.append(_joined(group, together))
    # A stable sort: parts of one parameter keep their order.
    return sorted(pieces, key=lambda piece: -min(order[place.name] for place in piece.places))


def _offsets(named: Mapping[str, nn.Parameter], vector: Tensor) -> list[tuple[str, int, int]]:
    """Return (name, index of the first element in the vector, length) of the vector's parameters, in its order."""
    begin, size = vector.data_ptr(), vector.element_size()
    end = begin + vector.numel() * size
    found = [
        (name, (parameter.data_ptr() - begin) // size, parameter.numel())
        for name, parameter in named.items()
        if parameter.numel() and begin <= parameter.data_ptr() < end
    ]
    return sorted(found, key=lambda one: one[1])


def _joined(group: int, together: Sequence[tuple[str, int, int]]) -> Piece:
    start = together[0][1]
    places = tuple(
        Place(name=name, start=0, offset=begin - start, length=length)
        for name, begin, length in together
    )
    last = places[-1]
    return Piece(group=group, start=start, length=last.offset + last.length, places=places)


def _parts(group: int, name: str, start: int, length: int, largest: int, ranks: int) -> list[Piece]:
    """Return equal pieces of one parameter; each but the last has as many elements for every rank."""
    count = -(-length // largest)
    size = -(-length // count)
    size += -size % ranks
    return [
        Piece(
            group=group,
            start=start + begin,
            length=min(size, length - begin),
            places=(Place(name=name, start=begin, offset=0, length=min(size, length - begin)),),
        )
        for begin in range(0, length, size)
    ]
