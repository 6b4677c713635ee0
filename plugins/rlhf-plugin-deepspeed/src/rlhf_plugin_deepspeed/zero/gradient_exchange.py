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
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlhf_torch.ranks.ranks import Ranks

from .pieces import Piece, cut

TRAVELING = 8
"""Elements on their way at once, by those of a piece. A compiled layer gives all its gradients at once: what waits for
one of them to arrive waits for the layer before, and a layer of 7B has 233 million elements, 5 pieces."""


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
        self._most = TRAVELING * largest
        lengths = [piece.part_length(ranks.world_size) for piece in self._pieces]
        self._offsets = [0, *accumulate(lengths)]
        """Index of each piece's first element in ``_total``, and its length."""
        self._uses: dict[str, int] = dict.fromkeys(self._named, 0)
        """Number of pieces that each parameter is a part of."""
        for piece in self._pieces:
            for place in piece.places:
                self._uses[place.name] += 1
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(name))
            for name, parameter in self._named.items()
        ]
        self._total: Tensor | None = None
        """This rank's parts of the sum, one piece after the other, float32. One vector, made before the first pass: in
        parts it would lie between activations, and leave gaps when these are freed."""
        self._added = False
        """Whether ``_total`` has the gradient of a whole pass."""
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._gradients: dict[str, Tensor] = {}
        self._left = dict(self._uses)
        """Pieces of each parameter that have not been sent in this pass."""
        self._next = 0
        """Number of the piece that is sent next."""
        self._traveling: deque[_Sent] = deque()
        self._underway = 0
        """Elements that are traveling."""

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

    def start_pass(self) -> None:
        """Have the memory for the gradient of an update, before the activations of its first pass take theirs."""
        if self._total is None:
            size, device = self._offsets[-1], self._ranks.device
            self._total = torch.empty(size, dtype=torch.float32, device=device)

    def finish_pass(self) -> None:
        """Send the rest of a micro-batch's gradient after its backward pass; a parameter without one counts as 0."""
        while self._next < len(self._pieces):
            self._send()
        while self._traveling:
            self._arrive()
        self._begin_pass()
        self._added = True

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
        self._total, self._added = None, False

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
        self._underway += len(leaving)
        for place in piece.places:
            self._left[place.name] -= 1
            if not self._left[place.name]:
                self._gradients.pop(place.name, None)
        while self._underway > self._most:
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
        self._underway -= len(sent.leaving)
        part = self._sum_of(sent.number)
        if self._added:
            part.add_(sent.arriving.sum(0, dtype=torch.float32))
        else:
            torch.sum(sent.arriving, 0, dtype=torch.float32, out=part)

    def _sum_of(self, number: int) -> Tensor:
        """Return this rank's part of a piece's sum."""
        assert self._total is not None, "start_pass comes first"
        ranks = self._ranks.world_size
        return self._total.narrow(0, self._offsets[number], self._pieces[number].part_length(ranks))

    def finish_update(self) -> None:
        """Hand DeepSpeed the gradient of the update: each rank gets the part whose weights it updates."""
        for group in range(len(self._zero.bit16_groups)):
            buffers = self._zero._build_compact_grad_partition_buffer(group)
            self._zero.averaged_gradients[group] = buffers
            for number, piece in enumerate(self._pieces):
                if piece.group == group:
                    self._deal(piece, self._sum_of(number), buffers.flat_partition)
        self.forget()

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
