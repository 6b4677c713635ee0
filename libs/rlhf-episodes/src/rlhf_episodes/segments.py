"""Segments: the paths of a graph as trajectories, in which each answer of the policy trains once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Trajectory, Turn

from .strand import Strand


def trajectories_of(
    uid: Uid,
    strands: Sequence[Strand],
    *,
    metrics: Mapping[str, float],
    rewards: Mapping[str, float],
) -> list[Trajectory]:
    """Return one trajectory for each strand that has actions, in order; ``EpisodeGraph.trajectories`` says what they
    hold."""
    learned = [[node for node in strand.nodes if node.learned.any()] for strand in strands]
    turn_rewards = [sum(_single(node.reward) for node in nodes) for nodes in learned if nodes]
    # A turn without actions is no turn of a row; what it earned belongs to the episode.
    of_others = sum(
        _single(node.reward)
        for strand in strands
        for node in strand.nodes
        if not node.learned.any()
    )
    of_episode = sum(rewards.values()) + of_others
    strands = [strand for strand, nodes in zip(strands, learned, strict=True) if nodes]
    last_requests = [strand.nodes[-1].index for strand in strands]
    trajectories = []
    for segment, strand in enumerate(strands):
        in_others = sum(turn_rewards[:segment]) + sum(turn_rewards[segment + 1 :])
        trajectory = _trajectory(uid._replace(segment=segment), strand)
        has_reward = rewards or len(strands) > 1 or of_others
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


def _trajectory(uid: Uid, strand: Strand) -> Trajectory:
    nodes = [node for node in strand.nodes if node.learned.any()]
    token_ids = strand.path(nodes[-1].end)
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
    )


def _single(number: float) -> float:
    """Return a number as columns of a batch hold it, so that the totals of an episode's segments agree there."""
    return float(np.float32(number))
