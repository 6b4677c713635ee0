"""The graph of an episode: every request to the policy is a node, with the ids that the engine read and wrote.

Sharing is by token ids alone. A request whose input goes on where an earlier path ends extends that path. Any other
leaves a path at the first token that differs, or repeats a part of one, or shares nothing; it begins a path of its own.
So changed histories, context compaction, sub-agents, swapped system prompts and parallel calls need no rule of theirs:
each path becomes one trajectory, and what was sampled trains once, on the path on which it was sampled.

Answers are never joined with what stands there already, even if the tokens are equal: of n completions of one prompt
each is a path of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Stop, Trajectory
from rlhf_core.contracts.engine import Completion
from rlhf_core.errors import RolloutError
from rlhf_core.media.spans import MediaSpan

from .answers import check_answer, stop_of
from .drift import LaterInput
from .paths import Branch, RequestNode, SharedPath, longest_shared, trajectories_of


class EpisodeGraph:
    """The requests of one episode, and the paths that they make.

    A request costs a comparison of its input with each path, and memory for the tokens that are new.

    Args:
        uid: name of the episode, with segment 0.
        one_token_turns: True: answers of the run have at most one token, so an answer that hit this limit is complete.
    """

    def __init__(self, uid: Uid, *, one_token_turns: bool = False) -> None:
        self.uid = uid
        self._one_token_turns = one_token_turns
        self._nodes: list[RequestNode] = []
        self._branches: list[Branch] = []
        """Paths in the order in which they began."""
        self._changed: dict[int, int] = {}
        """Index of each answer that a later input holds in another place or in other tokens -> the most tokens that are
        changed in any such input."""
        self._routes_shape: tuple[int, ...] = ()
        """Layers with experts, and experts of a token, as the first routes have them; empty: there were none."""

    @property
    def nodes(self) -> Sequence[RequestNode]:
        """All requests that were not discarded, in the order in which they were added."""
        return [node for node in self._nodes if not node.is_discarded]

    def add(
        self,
        prompt_ids: Sequence[int] | NDArray[np.int32],
        completion: Completion,
        agent: str = "",
        media: Sequence[MediaSpan] = (),
    ) -> RequestNode:
        """Add a request and its answer, and return it as a node.

        An input that holds the whole answer of a discarded request brings that request back: somebody read it.

        Args:
            prompt_ids: all tokens that the engine read.
            completion: the answer, as the engine gave it.
            agent: role or lineage of the agent that asked. It is recorded, and drift is told within an agent; tokens
                are shared whoever asked.
            media: images of the input. Tokens of another image are other tokens.

        Raises:
            RolloutError: as from ``check_answer``.
        """
        token_ids = np.asarray(prompt_ids, dtype=np.int32)
        number, layers = len(self._nodes), self._routes_shape
        check_answer(self.uid, number, len(token_ids), completion, layers)
        if completion.expert_routes is not None:
            self._routes_shape = completion.expert_routes.shape[1:]
        shared = longest_shared(self._branches, token_ids, media)
        if shared is not None and shared.is_whole:
            branch, num_shared, fork = shared.branch, shared.length, None
            for node in branch.nodes:
                node.is_discarded = False
        else:
            num_shared = shared.length if shared is not None else 0
            fork = num_shared if 0 < num_shared < len(token_ids) else None
            branch = Branch(shared.branch if shared is not None else None, num_shared)
            self._branches.append(branch)
        if shared is not None and fork is not None:
            self._note_drift(shared, token_ids, agent)
        node = RequestNode(
            index=len(self._nodes),
            agent=agent,
            parent=None if shared is None else shared.branch.last_read(num_shared),
            shared=num_shared,
            forked_at=fork,
            start=len(token_ids),
            # Each turn's completion has the routes of all tokens before it too; the path has them once.
            completion=replace(completion, expert_routes=None),
            # An episode that is cut off after it is marked so by ``mark_stop``.
            stop=stop_of(completion, self._one_token_turns),
            media=tuple(media),
            read_path=branch.path,
            read_routes=branch.routes,
        )
        branch.append(token_ids[num_shared:])
        branch.append(completion.token_ids)
        if completion.expert_routes is not None:
            branch.learn_routes(completion.expert_routes)
        branch.nodes.append(node)
        self._nodes.append(node)
        return node

    def reward(self, node: RequestNode, value: float) -> None:
        """Add to the reward of a request's turn."""
        node.reward += value

    def mark_stop(self, node: RequestNode, stop: Stop) -> None:
        """Set the reason for the end of a turn, where it is another than the engine's."""
        node.stop = stop

    def discard(self, node: RequestNode) -> None:
        """Leave out a request whose answer nobody used, such as a retry that was given up. It trains nothing, its
        reward is lost, and paths are as if it had never been asked.

        Raises:
            ValueError: a later request read the answer.
        """
        child = next((other for other in self.nodes if other.parent is node), None)
        if child is not None:
            raise ValueError(
                f"{self.uid}: request {node.index} cannot be discarded: request {child.index} read its answer"
            )
        node.is_discarded = True

    def metrics(self) -> dict[str, float]:
        """Return numbers of the episode's graph. Requests that were discarded count only as ``graph/discarded``.

        - ``graph/requests``: requests to the policy.
        - ``graph/segments``: paths, each of which is a trajectory.
        - ``graph/agents``: different agents that asked.
        - ``graph/forks``: requests whose input leaves an earlier path at a token that differs.
        - ``graph/rerendered_turns``: answers that a later input of the same agent holds again after such a fork, so
          not where they were sampled: what stood before them changed, or they did. The input holds an answer if at
          least half of its tokens are there, kept or in runs of three; otherwise it was dropped, as by a summary.
        - ``graph/retokenized_tokens``: tokens of those answers that stand in a later input as other tokens; tokens that
          were only taken out, such as reasoning, do not count. Of several inputs the one with the most counts.
        - ``graph/discarded``: requests that were discarded.
        """
        graph = self._kept()
        return {
            "graph/requests": float(len(graph._nodes)),
            "graph/segments": float(len(graph._branches)),
            "graph/agents": float(len({node.agent for node in graph._nodes})),
            "graph/forks": float(sum(node.forked_at is not None for node in graph._nodes)),
            "graph/rerendered_turns": float(len(graph._changed)),
            "graph/retokenized_tokens": float(sum(graph._changed.values())),
            "graph/discarded": float(len(self._nodes) - len(graph._nodes)),
        }

    def trajectories(
        self,
        *,
        metrics: Mapping[str, float] | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> list[Trajectory]:
        """Return one trajectory for each path, with ``uid.segment`` in the order in which the paths began.

        A path's own answers are its actions; answers that it shares with the path that it left are context, since they
        are actions there. So each token that was sampled is an action once, and each trajectory has actions.

        Turn rewards stand on their own turns. Rewards of the episode, and of several segments the turn rewards that
        stand in the others, are ``Trajectory.reward``: so each segment's ``total_reward`` is the episode's.

        Args:
            metrics: numbers to record for the episode, by name.
            rewards: rewards of the whole episode, by name; their sum is the episode's reward beside its turns'.

        Answers, and tokens of answers, that a grammar decided (``RequestNode.learned``) are context too; a path on
        which no token was left to the policy gives no trajectory.

        Raises:
            RolloutError: there is no request.
        """
        graph = self._kept()
        if not graph._nodes:
            raise RolloutError(
                f"{self.uid}: the policy was never asked; expected at least one request in an episode",
                code="rollout/never-asked",
            )
        return trajectories_of(
            self.uid, graph._branches, metrics=metrics or {}, rewards=rewards or {}
        )

    def _kept(self) -> EpisodeGraph:
        """Return the graph as if requests that were discarded had never been asked."""
        kept = self.nodes
        if len(kept) == len(self._nodes):
            return self
        graph = EpisodeGraph(self.uid)
        for node in kept:
            routes = node.read_routes(node.end - 1)
            completion = replace(node.completion, stop=node.stop, expert_routes=routes)
            graph.reward(graph.add(node.input_ids, completion, node.agent, node.media), node.reward)
        return graph

    def _note_drift(self, shared: SharedPath, token_ids: NDArray[np.int32], agent: str) -> None:
        """Note the answers of the path that the input leaves which it holds again after the fork."""
        left = [
            node
            for node in shared.branch.nodes
            if node.end > shared.length and node.agent == agent and not node.is_discarded
        ]
        if not left:
            return
        later = LaterInput(token_ids[max(0, shared.length - 2) :])
        for node in left:
            kept = max(0, shared.length - node.start)
            changed = later.num_changed(node.path_ids[node.start - 1 :], kept)
            if changed is not None:
                self._changed[node.index] = max(changed, self._changed.get(node.index, 0))
