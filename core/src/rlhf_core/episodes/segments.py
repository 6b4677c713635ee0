"""Segments: the paths of a graph as trajectories, in which each answer of the policy trains once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
    of_episode = sum(rewards.values())
    last_requests = [strand.nodes[-1].index for strand in strands]
    trajectories = []
    for segment, strand in enumerate(strands):
        in_others = sum(turn_rewards[:segment]) + sum(turn_rewards[segment + 1 :])
        trajectory = _trajectory(uid._replace(segment=segment), strand)
        has_reward = rewards or len(strands) > 1
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
