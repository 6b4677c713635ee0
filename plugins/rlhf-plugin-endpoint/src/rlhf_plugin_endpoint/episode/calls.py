"""Calls: what was sampled in an episode, each with its place, from which its name, its seed and its order follow.

The place of a call is what the engine read, who asked, and how many calls before read the same. It does not depend on
when the call came: parallel calls of a deterministic agent have the same seeds in every run, in whatever order they
arrive, and the episode's graph is built in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import Completion, Message, Stop, Uid
from rlhf_core.media import MediaRef, MediaSpan
from rlhf_episodes import EpisodeGraph, RequestNode

from .identity import digest_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelInput:
    """Input of a request: the tokens and images that the engine reads before it answers."""

    token_ids: NDArray[np.int32]
    """(T,) with all tokens of images."""
    marked_ids: NDArray[np.int32]
    """(M,) the same with one marker for each image, as the chat template writes them; without images ``token_ids``."""
    media: tuple[MediaSpan, ...] = ()
    """Images among ``token_ids``."""
    parent: SampledCall | None
    """The call whose tokens it goes on with; None: it was rendered anew."""
    showed_all: bool = False
    """The template had to show the whole conversation to tell what follows that call's answer."""

    @property
    def images(self) -> tuple[MediaRef, ...]:
        """Images in the order of their markers."""
        return tuple(span.image for span in self.media)


@dataclass(slots=True, kw_only=True, eq=False)
class SampledCall:
    """One answer of the policy, with all that the engine read before it."""

    place: bytes
    read: ModelInput
    """Input of the request."""
    completion: Completion
    num_messages: int
    """Messages of the request."""
    agent: str
    message: Message
    """The answer as a message in the form of templates, as the client got it."""
    stop: Stop
    is_wanted: bool = True
    """False: its client went away before it came, and nobody asked again."""
    node: RequestNode | None = None
    """The call in the episode's graph, once there is one."""

    @property
    def parent(self) -> SampledCall | None:
        """The call whose tokens its input goes on with; None: its input was rendered anew."""
        return self.read.parent

    @property
    def marked_path_ids(self) -> NDArray[np.int32]:
        """(M + A,) all tokens through the answer's last one, with one marker for each image."""
        return np.concatenate([self.read.marked_ids, self.completion.token_ids])


class PlaceCounter:
    """Counts calls that read the same, so that each has a place of its own."""

    def __init__(self) -> None:
        self._num_taken: dict[bytes, int] = {}

    def take(self, read: ModelInput, agent: str, count: int) -> list[bytes]:
        """Return the places of ``count`` further calls with this input. Other images are another input."""
        images = [span.image.identity.encode() for span in read.media]
        same = digest_of(read.token_ids.tobytes(), agent.encode("utf-8", "surrogatepass"), *images)
        first = self._num_taken.get(same, 0)
        self._num_taken[same] = first + count
        return [
            digest_of(same, index.to_bytes(4, "little")) for index in range(first, first + count)
        ]


def turn_of(place: bytes) -> int:
    """Return the counter by which a place's seed is drawn: 62 bits, far above the turns that are counted from 0."""
    return int.from_bytes(place[:8], "little") >> 2


def call_id(place: bytes, index: int) -> str:
    """Return the id of an answer's tool call: nine letters and digits, which every template and client takes."""
    return digest_of(place, index.to_bytes(4, "little")).hex()[:9]


def graph_of(uid: Uid, calls: Sequence[SampledCall]) -> EpisodeGraph:
    """Return the episode's graph. Calls stand behind what they go on with, shorter conversations first; what is equally
    long stands in the order of places."""
    below: dict[int, list[SampledCall]] = {}
    for call in calls:
        below.setdefault(id(call.parent), []).append(call)
    graph = EpisodeGraph(uid)
    waiting = _in_order(below.get(id(None), ()))
    while waiting:
        call = waiting.pop()
        node = graph.add(call.read.token_ids, call.completion, call.agent, call.read.media)
        call.node = node
        if not call.is_wanted:
            graph.discard(node)
        waiting += _in_order(below.get(id(call), ()))
    return graph


def _in_order(calls: Sequence[SampledCall]) -> list[SampledCall]:
    """Return calls, the first of them last."""
    return sorted(calls, key=lambda call: (call.num_messages, call.place), reverse=True)
