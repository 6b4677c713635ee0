"""Sums of gradients over ranks at ZeRO stage 2, while the backward pass goes on.

DeepSpeed's own way turns each gradient to float32, sums it on all ranks, although one of them needs it, and waits for
that in the backward pass: 30 bytes over the link for each parameter and micro-batch where 3 do. Here each rank gets a
part of each piece from all ranks in the type that the gradient has, and adds the parts up in float32. A piece travels
while earlier layers are computed. After the last micro-batch the sums go to the ranks that update them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..parallel.ranks import Ranks
from .pieces import Piece, cut

TRAVELING = 2
"""Pieces that are on their way at once; each has memory for what comes."""


@dataclass(slots=True)
class _Sent:
    """A piece on its way."""

    number: int
    arriving: Tensor
    """(ranks, elements of a part): this rank's part of the piece from every rank."""
    leaving: Tensor
    """The gradient, which has to stay until it has been sent."""
    work: Any
    """torch's handle of the call."""


class GradientExchange:
    """The gradient of an update: summed over micro-batches and ranks, each rank having its part.

    All ranks make the same calls in the same order.

    Args:
        zero: DeepSpeed's optimizer of stage 2, which is kept from exchanging gradients itself.
        named: all trained parameters, in the order of the forward pass.
        largest: the number of elements that are sent at once.
    """

    def __init__(
        self, zero: Any, named: Mapping[str, nn.Parameter], ranks: Ranks, largest: int
    ) -> None:
        self._zero, self._named, self._ranks = zero, dict(named), ranks
        for handle in zero._grad_acc_hooks:
            handle.remove()
        zero._grad_acc_hooks.clear()
        self._pieces = cut(self._named, zero.bit16_groups_flat, largest, ranks.world_size)
        self._uses: dict[str, int] = dict.fromkeys(self._named, 0)
        """Number of pieces that each parameter is a part of."""
        for piece in self._pieces:
            for place in piece.places:
                self._uses[place.name] += 1
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(name))
            for name, parameter in self._named.items()
        ]
        self._sums: dict[int, Tensor] = {}
        """This rank's part of the sum by number of the piece, float32."""
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._gradients: dict[str, Tensor] = {}
        self._left = dict(self._uses)
        """Pieces of each parameter that have not been sent in this pass."""
        self._next = 0
        """Number of the piece that is sent next."""
        self._traveling: deque[_Sent] = deque()

    def _hook(self, name: str) -> Any:
        def take(parameter: nn.Parameter) -> None:
            assert parameter.grad is not None
            self._gradients[name] = parameter.grad.detach()
            parameter.grad = None
            while self._next < len(self._pieces) and self._is_complete(self._pieces[self._next]):
                self._send()

        return take

    def _is_complete(self, piece: Piece) -> bool:
        return all(place.name in self._gradients for place in piece.places)

    def finish_pass(self) -> None:
        """Send the rest of a micro-batch's gradient after its backward pass; a parameter without one counts as 0."""
        while self._next < len(self._pieces):
            self._send()
        while self._traveling:
            self._arrive()
        self._begin_pass()

    def give_up_pass(self) -> None:
        """Send anything for the rest of a micro-batch that failed on this rank, for which other ranks wait.

        The gradient of the update is of no use then; ``forget`` drops it.
        """
        self._gradients.clear()
        for _, parameter in self._named.items():
            parameter.grad = None
        while self._traveling:
            self._traveling.popleft().work.wait()
        ranks = self._ranks.world_size
        while self._next < len(self._pieces):
            piece = self._pieces[self._next]
            dtype, device = self._kind(piece)
            nothing = torch.zeros(ranks * piece.part_length(ranks), dtype=dtype, device=device)
            sent = self._exchanged(nothing, torch.empty_like(nothing))
            self._next += 1
            sent.wait()
        self._begin_pass()

    def forget(self) -> None:
        """Drop the gradient of the update so far."""
        self._sums.clear()

    def close(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()

    def _kind(self, piece: Piece) -> tuple[torch.dtype, torch.device]:
        parameter = self._named[piece.places[0].name]
        return parameter.dtype, self._ranks.device

    def _send(self) -> None:
        """Send the next piece of this pass, and take in the one that was sent before the last ones."""
        piece = self._pieces[self._next]
        leaving = self._leaving(piece)
        arriving = torch.empty_like(leaving)
        work = self._exchanged(leaving, arriving)
        sent = _Sent(self._next, arriving.view(self._ranks.world_size, -1), leaving, work)
        self._next += 1
        self._traveling.append(sent)
        for place in piece.places:
            self._left[place.name] -= 1
            if not self._left[place.name]:
                self._gradients.pop(place.name, None)
        while len(self._traveling) > TRAVELING:
            self._arrive()

    def _leaving(self, piece: Piece) -> Tensor:
        """Return the gradient of a piece, padded to equal parts for all ranks, as a vector."""
        ranks = self._ranks.world_size
        padded = ranks * piece.part_length(ranks)
        if len(piece.places) == 1 and padded == piece.length:
            (place,) = piece.places
            gradient = self._gradients.get(place.name)
            if gradient is not None:
                return gradient.reshape(-1).narrow(0, place.start, place.length)
        dtype, device = self._kind(piece)
        whole = torch.zeros(padded, dtype=dtype, device=device)
        for place in piece.places:
            gradient = self._gradients.get(place.name)
            if gradient is not None:
                part = gradient.reshape(-1).narrow(0, place.start, place.length)
                whole.narrow(0, place.offset, place.length).copy_(part)
        return whole

    def _exchanged(self, leaving: Tensor, arriving: Tensor) -> Any:
        """Begin to send each rank its part, as bytes: some backends know no bfloat16."""
        return dist.all_to_all_single(
            arriving.view(torch.uint8), leaving.view(torch.uint8), async_op=True
        )

    def _arrive(self) -> None:
        """Add what came of the oldest piece on its way to this rank's sum."""
        sent = self._traveling.popleft()
        sent.work.wait()
        part = sent.arriving.sum(0, dtype=torch.float32)
        total = self._sums.get(sent.number)
        if total is None:
            self._sums[sent.number] = part
        else:
            total.add_(part)

    def finish_update(self) -> None:
        """Hand DeepSpeed the gradient of the update: each rank gets the part whose weights it updates."""
        for group in range(len(self._zero.bit16_groups)):
            buffers = self._zero._build_compact_grad_partition_buffer(group)
            self._zero.averaged_gradients[group] = buffers
            for number, piece in enumerate(self._pieces):
                if piece.group == group and number in self._sums:
                    self._deal(piece, self._sums.pop(number), buffers.flat_partition)

    def _deal(self, piece: Piece, total: Tensor, partition: Tensor) -> None:
        """Send the parts of a piece's sum to the ranks that update them, whose ``partition`` takes them in."""
        rank, ranks, size = self._ranks.rank, self._ranks.world_size, len(partition)
        mine = piece.part(rank, ranks)
        owned = [(owner * size, (owner + 1) * size) for owner in range(ranks)]
        leaving = [_common(mine, owner) for owner in owned]
        coming = [_common(piece.part(other, ranks), owned[rank]) for other in range(ranks)]
        begin = max(piece.start, owned[rank][0]) - owned[rank][0]
        target = partition.narrow(0, begin, sum(coming)) if sum(coming) else partition[:0]
        dist.all_to_all_single(target, total[: mine[1] - mine[0]], coming, leaving)


def _common(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Return the number of elements that two ranges share."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
