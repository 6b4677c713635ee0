"""A rank's links to engines, by which weights go to them without the driver and the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlhf_core import RLHFError
from rlhf_core.weights import (
    Invitation,
    LinkBroken,
    Path,
    Place,
    SendingLink,
    WeightPlan,
    place_of,
    plan_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a rank has to send, and from where."""

    place: Place
    num_bytes: int


class RankLinks:
    """The sending ends that live in a rank's process."""

    def __init__(self) -> None:
        self._plan: WeightPlan
        self._device: torch.device
        self._links: dict[str, SendingLink] = {}

    def plan(self, weights: Iterable[Mapping[str, Tensor]], bucket_bytes: int) -> Offer:
        """Look at all weights once; their shapes stay."""
        seen: set[torch.device] = set()

        def watched() -> Iterator[Mapping[str, Tensor]]:
            for bucket in weights:
                seen.update(tensor.device for tensor in bucket.values())
                yield bucket

        self._plan = plan_weights(watched(), bucket_bytes)
        # Some on a GPU and some not: they are copied to the GPU on their way.
        self._device = max(seen, key=lambda device: device.type == "cuda")
        return Offer(place=place_of(self._device), num_bytes=self._plan.num_bytes)

    def open(
        self, name: str, path: Path, num_receivers: int, host: str, timeout_s: float
    ) -> Invitation:
        """Make a link; ``connect`` has to run while its receivers join."""
        link = SendingLink(
            name,
            plan=self._plan,
            path=path,
            num_receivers=num_receivers,
            device=self._device,
            host=host,
            timeout_s=timeout_s,
        )
        self._links[name] = link
        return link.invitation

    async def connect(self, name: str) -> None:
        """Wait for the receivers in a thread, so that ``give_up`` can end it."""
        await asyncio.to_thread(self._links[name].connect)

    async def send(
        self, version: int, names: Sequence[str], weights: Iterable[Mapping[str, Tensor]]
    ) -> dict[str, str]:
        """Send all weights by the links, and return why a link broke, by its name.

        A broken link does not end the gathering of weights, in which other ranks take part.
        """
        links = {name: self._links[name] for name in names}
        broken: dict[str, str] = {}

        async def on_each(act: Callable[[SendingLink], Awaitable[None]]) -> None:
            for name, link in links.items():
                if name not in broken:
                    try:
                        await act(link)
                    except LinkBroken as error:
                        broken[name] = str(error)

        try:
            await on_each(lambda link: link.start(version))
            for bucket in weights:
                for name, weight in bucket.items():
                    await on_each(partial(_put, name, weight))
            await on_each(lambda link: link.finish())
        except BaseException as error:
            for link in links.values():
                link.give_up(str(error) or type(error).__name__)
            raise
        return broken

    def give_up(self, name: str, reason: str) -> None:
        """End the waits of all ends of a link."""
        self._links[name].give_up(reason)

    def close(self, name: str) -> None:
        """Free what a link holds."""
        self._links.pop(name).close()

    def close_all(self) -> None:
        for name in list(self._links):
            self.close(name)


async def _put(name: str, weight: Tensor, link: SendingLink) -> None:
    await link.put(name, weight)


def require_planned(offers: Sequence[Offer]) -> Offer:
    """Return the offer that all ranks make.

    Raises:
        RLHFError: they have different weights.
    """
    if len({offer.num_bytes for offer in offers}) != 1:
        sizes = [offer.num_bytes for offer in offers]
        raise RLHFError(f"the policy's ranks gave weights of {sizes} bytes; each has to give all")
    return offers[0]
