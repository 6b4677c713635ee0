"""A rank's links to engines, by which weights reach the engines without the driver and the object store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlhf_core import RLHFError
from rlhf_weights import (
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
    """The size and the place of a rank's weights."""

    place: Place
    """Machine and device that the rank sends from."""
    num_bytes: int
    """Number of bytes of all weights."""


class RankLinks:
    """The sending ends of links in a rank's process, by name."""

    def __init__(self) -> None:
        self._plan: WeightPlan
        self._device: torch.device
        self._links: dict[str, SendingLink] = {}

    def plan(self, weights: Iterable[Mapping[str, Tensor]], bucket_bytes: int) -> Offer:
        """Deal all weights into buckets, and return their size and place. One plan serves all versions of the weights.

        Args:
            weights: all weights by Hugging Face name, some at a time.
            bucket_bytes: number of bytes of one bucket.
        """
        seen: set[torch.device] = set()

        def watched() -> Iterator[Mapping[str, Tensor]]:
            for bucket in weights:
                seen.update(tensor.device for tensor in bucket.values())
                yield bucket

        self._plan = plan_weights(watched(), bucket_bytes)
        # If only some weights are on a GPU, the link copies the others to this GPU.
        self._device = max(seen, key=lambda device: device.type == "cuda")
        return Offer(place=place_of(self._device), num_bytes=self._plan.num_bytes)

    def open(
        self, name: str, path: Path, num_receivers: int, host: str, timeout_s: float
    ) -> Invitation:
        """Make a link, and return the invitation for its receivers. ``connect`` has to run while they join.

        Args:
            num_receivers: number of processes that will join.
            host: address of this machine for the receivers.
            timeout_s: deadline of every single wait at the ends of the link.
        """
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
        """Wait for the receivers of a link, in a thread, so that ``give_up`` can end the wait.

        Raises:
            LinkBroken: a receiver did not join, or ``give_up`` was called.
        """
        await asyncio.to_thread(self._links[name].connect)

    async def send(
        self, version: int, names: Sequence[str], weights: Iterable[Mapping[str, Tensor]]
    ) -> dict[str, str]:
        """Send all weights by the links, and return the reason for each link that broke, by its name.

        A broken link does not end the iteration over ``weights``, since other ranks take part in gathering them.
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
        """End the waits at all ends of a link, and give them the reason."""
        self._links[name].give_up(reason)

    def close(self, name: str) -> None:
        """Free the buffers and sockets of a link."""
        self._links.pop(name).close()

    def close_all(self) -> None:
        """Free the buffers and sockets of all links."""
        for name in list(self._links):
            self.close(name)


async def _put(name: str, weight: Tensor, link: SendingLink) -> None:
    await link.put(name, weight)


def require_planned(offers: Sequence[Offer]) -> Offer:
    """Return the first rank's offer, after a check that all ranks offer equally many bytes.

    Raises:
        RLHFError: the ranks have weights of different sizes.
    """
    if len({offer.num_bytes for offer in offers}) != 1:
        sizes = [offer.num_bytes for offer in offers]
        raise RLHFError(
            f"the policy's ranks gave weights of {sizes} bytes; each has to give all",
            code="weights/part-of-the-weights",
        )
    return offers[0]
