"""Paths of an episode's graph: requests as nodes, the tokens of a path, and the trajectories that paths become.

In the trajectories each answer of the policy trains once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Uid
from rlhf_core.batch.token_columns import joined_routes
from rlhf_core.batch.trajectory import Stop, Trajectory, Turn
from rlhf_core.contracts.engine import Completion
from rlhf_core.media.spans import MediaSpan

from .answers import learned_tokens
from .routes import BranchRoutes


@dataclass(slots=True, kw_only=True, eq=False)
class RequestNode:
    """One request of an episode. The graph makes it and keeps it up to date; others read it."""

    index: int
    """Place among the episode's requests, in the order in which they were added, from 0."""
    agent: str
    """Role or lineage of the agent that asked; empty: the main one."""
    parent: RequestNode | None
    """The last request of whose answer the input holds at least a token, where it is shared; None: it holds none."""
    shared: int
    """Number of the input's first tokens that stand on an earlier path."""
    forked_at: int | None
    """Index of the first token of the input that differs from the earlier path; None if none does: the input goes on
    where a path ends, repeats a part of one, or shares nothing."""
    start: int
    """Number of tokens of the input: the index in the path of the answer's first token."""
    completion: Completion
    """The answer, with its log-probs and versions. Its routes to experts are the path's."""
    stop: Stop
    media: tuple[MediaSpan, ...] = ()
    """Images of the input."""
    reward: float = 0.0
    """Reward of this turn."""
    is_discarded: bool = False
    read_path: Callable[[int], NDArray[np.int32]] = field(repr=False)
    """Returns the path's first tokens; ``path_ids`` is how it is used."""
    read_routes: Callable[[int], NDArray[np.signedinteger] | None] = field(repr=False)
    """Returns the experts (T, L, k) of the path's first tokens, -1 where none are known; None: of no token."""

    @property
    def learned(self) -> NDArray[np.bool_]:
        """See ``learned_tokens``."""
        return learned_tokens(self.completion)

    @property
    def end(self) -> int:
        """Index in the path after the answer's last token."""
        return self.start + len(self.completion.token_ids)

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """(T,) all tokens that the engine read, as a copy."""
        return self.read_path(self.start)

    @property
    def path_ids(self) -> NDArray[np.int32]:
        """(T,) all tokens from the path's first one to the answer's last, as a copy."""
        return self.read_path(self.end)


class Branch:
    """One path of a graph. Its first ``start`` tokens are its parent's; only what follows is held, in one array.

    Args:
        parent: the branch that it leaves; None: it begins with a token of its own.
        start: number of tokens that it shares with its parent.
    """

    __slots__ = ("_end", "_own", "_routes", "nodes", "parent", "start")

    def __init__(self, parent: Branch | None, start: int) -> None:
        self.parent = parent
        self.start = start
        self.nodes: list[RequestNode] = []
        """Requests whose answers are among the branch's own tokens, in order."""
        self._own = np.zeros(0, dtype=np.int32)
        self._end = start
        self._routes: BranchRoutes | None = None

    def __len__(self) -> int:
        """Return the number of tokens of the whole path."""
        return self._end

    def append(self, token_ids: NDArray[np.int32]) -> None:
        """Add tokens at the end. The array grows by half of its size, so that many turns cost what they add."""
        used, needed = self._end - self.start, self._end - self.start + len(token_ids)
        if needed > len(self._own):
            grown = np.zeros(max(needed, len(self._own) * 3 // 2), dtype=np.int32)
            grown[:used] = self._own[:used]
            self._own = grown
        self._own[used:needed] = token_ids
        self._end += len(token_ids)

    def num_shared(self, token_ids: NDArray[np.int32]) -> int:
        """Return how many of the branch's own tokens are those at ``token_ids[start:]``, from the first on."""
        own, other = self._own[: self._end - self.start], token_ids[self.start :]
        count = min(len(own), len(other))
        if not count or own[0] != other[0]:
            return 0
        differs = own[:count] != other[:count]
        first = int(differs.argmax())
        return first if differs[first] else count

    def path(self, end: int) -> NDArray[np.int32]:
        """Return a copy of the path's first ``end`` tokens."""
        path = np.empty(end, dtype=np.int32)
        branch: Branch | None = self
        while branch is not None:
            if end > branch.start:
                path[branch.start : end] = branch._own[: end - branch.start]
                end = branch.start
            branch = branch.parent
        return path

    def learn_routes(self, routes: NDArray[np.signedinteger]) -> None:
        """Take the experts (T, L, k) of the path's first tokens, for those of which none are known."""
        end = len(routes)
        branch: Branch | None = self
        while branch is not None:
            if end > branch.start:
                branch._routes = branch._routes or BranchRoutes()
                branch._routes.learn(routes[branch.start : end])
                end = branch.start
            branch = branch.parent

    def routes(self, end: int) -> NDArray[np.signedinteger] | None:
        """Return the experts (end, L, k) of the path's first tokens, -1 where none are known; None: of no token."""
        parts: list[NDArray[np.signedinteger] | None] = []
        lengths: list[int] = []
        branch: Branch | None = self
        while branch is not None:
            if end > branch.start:
                own = branch._routes
                parts.append(None if own is None else own.first(end - branch.start))
                lengths.append(end - branch.start)
                end = branch.start
            branch = branch.parent
        return joined_routes(parts[::-1], lengths[::-1])

    def last_read(self, end: int) -> RequestNode | None:
        """Return the last request of whose answer a token is among the path's first ``end``; None: there is none."""
        branch: Branch | None = self
        while branch is not None:
            for node in reversed(branch.nodes):
                is_read = node.end <= end if node.is_discarded else node.start < end
                if is_read:
                    return node
            end = min(end, branch.start)
            branch = branch.parent
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPath:
    """The longest part of an input that is on a branch already."""

    branch: Branch
    length: int
    """Number of tokens that are shared, at least 1."""

    @property
    def is_whole(self) -> bool:
        """True when the branch ends where the shared part does, so that the input goes on with it."""
        return self.length == len(self.branch)


def longest_shared(
    branches: Sequence[Branch], token_ids: NDArray[np.int32], media: Sequence[MediaSpan] = ()
) -> SharedPath | None:
    """Return the branch that shares the longest prefix with an input; None: no branch shares a token.

    Of several the one that ends there is taken, then one whose last answer was not discarded, then the latest.

    Args:
        branches: each after its parent.
        media: images of the input. Tokens of another image are other tokens.
    """
    shared: dict[int, int] = {}
    best: tuple[int, bool, bool] = (0, False, False)
    found: Branch | None = None
    for branch in branches:
        inherited = shared[id(branch.parent)] if branch.parent is not None else 0
        if inherited < branch.start:
            shared[id(branch)] = inherited
            continue
        same_tokens = branch.start + branch.num_shared(token_ids)
        length = shared[id(branch)] = _up_to_other_image(same_tokens, branch.nodes[-1].media, media)
        rank = (length, length == len(branch), not branch.nodes[-1].is_discarded)
        if length > branch.start and rank >= best:
            best, found = rank, branch
    return None if found is None else SharedPath(branch=found, length=best[0])


def _up_to_other_image(length: int, known: Sequence[MediaSpan], media: Sequence[MediaSpan]) -> int:
    """Return how many of the first ``length`` tokens stand before the first image that differs."""
    parts = ([span for span in spans if span.start < length] for spans in (known, media))
    for one, other in zip_longest(*parts):
        if one != other:
            return min(span.start for span in (one, other) if span is not None)
    return length


def trajectories_of(
    uid: Uid,
    branches: Sequence[Branch],
    *,
    metrics: Mapping[str, float],
    rewards: Mapping[str, float],
) -> list[Trajectory]:
    """Return one trajectory for each branch that has actions, in order; ``EpisodeGraph.trajectories`` says what they
    hold."""
    learned = [[node for node in branch.nodes if node.learned.any()] for branch in branches]
    turn_rewards = [sum(_single(node.reward) for node in nodes) for nodes in learned if nodes]
    # A turn without actions is no turn of a row; what it earned belongs to the episode.
    of_others = sum(
        _single(node.reward)
        for branch in branches
        for node in branch.nodes
        if not node.learned.any()
    )
    of_episode = sum(rewards.values()) + of_others
    branches = [branch for branch, nodes in zip(branches, learned, strict=True) if nodes]
    last_requests = [branch.nodes[-1].index for branch in branches]
    trajectories = []
    for segment, branch in enumerate(branches):
        in_others = sum(turn_rewards[:segment]) + sum(turn_rewards[segment + 1 :])
        trajectory = _trajectory(uid._replace(segment=segment), branch)
        has_reward = rewards or len(branches) > 1 or of_others
        trajectories.append(
            replace(
                trajectory,
                reward=of_episode + in_others if has_reward else None,
                rewards=dict(rewards),
                is_final=last_requests[segment] == max(last_requests),
                metrics=dict(metrics),
            )
        )
    return trajectories


def _trajectory(uid: Uid, branch: Branch) -> Trajectory:
    nodes = [node for node in branch.nodes if node.learned.any()]
    token_ids = branch.path(nodes[-1].end)
    mask = np.zeros(len(token_ids), dtype=bool)
    for node in nodes:
        mask[node.start : node.end] = node.learned
    return Trajectory(
        uid=uid,
        token_ids=token_ids,
        action_mask=mask,
        rollout_logprobs=np.concatenate([node.completion.logprobs[node.learned] for node in nodes]),
        weight_version=np.concatenate(
            [node.completion.weight_version[node.learned] for node in nodes]
        ),
        turns=tuple(
            Turn(
                start=node.start,
                end=node.end,
                reward=node.reward,
                stop=node.stop,
                place=node.index,
            )
            for node in nodes
        ),
        media=nodes[-1].media,
        routes=branch.routes(len(token_ids)),
    )


def _single(number: float) -> float:
    """Return a number as columns of a batch hold it, so that the totals of an episode's segments agree there."""
    return float(np.float32(number))
