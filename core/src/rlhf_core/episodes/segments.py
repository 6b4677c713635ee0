"""Segments: the paths of a graph as trajectories, in which each answer of the policy trains once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..batch.task import Uid
from ..batch.trajectory import Trajectory, Turn
from .strand import Strand


def trajectories_of(
    uid: Uid,
    strands: Sequence[Strand],
    *,
    metrics: Mapping[str, float],
    rewards: Mapping[str, float],
) -> list[Trajectory]:
    """Return one trajectory for each strand, in order; ``EpisodeGraph.trajectories`` says what they hold."""
    turn_rewards = [sum(_single(node.reward) for node in strand.nodes) for strand in strands]
    total = sum(rewards.values()) + sum(turn_rewards)
    if len(strands) == 1:
        given = sum(rewards.values()) if rewards else None
        return [_trajectory(uid, strands[0], given, metrics, rewards)]
    return [
        _trajectory(uid._replace(segment=segment), strand, total - own, metrics, rewards)
        for segment, (strand, own) in enumerate(zip(strands, turn_rewards, strict=True))
    ]


def _trajectory(
    uid: Uid,
    strand: Strand,
    reward: float | None,
    metrics: Mapping[str, float],
    rewards: Mapping[str, float],
) -> Trajectory:
    nodes = strand.nodes
    token_ids = strand.path(nodes[-1].end)
    mask = np.zeros(len(token_ids), dtype=bool)
    for node in nodes:
        mask[node.start : node.end] = True
    return Trajectory(
        uid=uid,
        token_ids=token_ids,
        action_mask=mask,
        rollout_logprobs=np.concatenate([node.completion.logprobs for node in nodes]),
        weight_version=np.concatenate([node.completion.weight_version for node in nodes]),
        turns=tuple(
            Turn(start=node.start, end=node.end, reward=node.reward, stop=node.stop)
            for node in nodes
        ),
        reward=reward,
        rewards=dict(rewards),
        metrics=dict(metrics),
    )


def _single(number: float) -> float:
    """Return a number as columns of a batch hold it, so that the totals of an episode's segments agree there."""
    return float(np.float32(number))
