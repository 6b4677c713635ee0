"""Every estimator credits a turn with what it and later turns earned, also where they stand on other rows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhf_core import plugins
from rlhf_core.contracts import Completion, Stop, TrajectoryColumns, Uid
from rlhf_episodes import EpisodeGraph
from rlhf_testing.conformance import subject
from rlhf_trainer.learning.advantages import make_reward_batch
from rlhf_trainer.learning.model_outputs import ModelOutputs
from rlhf_trainer.rollouts.episodes import GREEDY_REWARD

ROOT = Path(__file__).parents[4]
ESTIMATORS = "rlhf_advantage_estimators"

BY_HAND = {
    # What is still earned: 4 from A on, 3 from B on; 1 and 1 from a and b on.
    "algorithms:gae": (
        {"lambda_": 1.0, "whiten": "none"},
        [4.0, 3.0, 1.0, 1.0],
    ),  # with values of 0
    "algorithms:reinforce": ({"whiten": "none"}, [4.0, 3.0, 1.0, 1.0]),
    # Means: 2.5 at the first turn, (3 + 1) / 2 = 2 at the second.
    "algorithms:dr_grpo": ({}, [1.5, 1.0, -1.5, -1.0]),
    "algorithms:reinforce_baseline": ({"whiten": "none"}, [1.5, 1.0, -1.5, -1.0]),
    "algorithms:opo": ({}, [1.5, 1.0, -1.5, -1.0]),  # both episodes have 2 tokens
    # Deviations (n - 1) of two numbers: their distance over the root of 2, so +-1.5 / 2.1213 and +-1 / 1.4142.
    "algorithms:group_norm": ({"eps": 1e-6}, [0.5**0.5, 0.5**0.5, -(0.5**0.5), -(0.5**0.5)]),
    "algorithms:rloo": ({}, [3.0, 2.0, -3.0, -2.0]),  # minus the other one
    "algorithms:flash_reinforce": ({}, [1.5, 0.5, -1.5, -1.5]),  # minus 2.5, the batch's mean
    "algorithms:remax": ({}, [2.0, 1.0, -1.0, -1.0]),  # minus the greedy episode's 2
    "algorithms:maxrl": ({}, [1.5 / 2.5, 1.0 / 2.0, -1.5 / 2.5, -1.0 / 2.0]),
    "algorithms:grpo_passk": ({"std": "none"}, [3.0, 2.0, 0.0, 0.0]),  # the lead of the best
    # Episodes: 4 and 1, mean 2.5. Turns with a discount of 1/2 that read the same: A 1 + 3/2 and a 0 + 1/2, mean 1.5;
    # B 3 and b 1, mean 2.
    "algorithms:gigpo": (
        {"norm": "none", "gamma": 0.5},
        [1.5 + 1.0, 1.5 + 1.0, -1.5 - 1.0, -1.5 - 1.0],
    ),
    # B is alone with the text that its row starts from. A, a and b are compared with the other episode's same turn.
    "algorithms:hierarchical_grpo": ({}, [1.5, 0.0, -1.5, -1.0]),
    # First tokens of rows: 4 and 3, which share their episode's weight, and 1: (2 + 1.5 + 1) / 2 = 2.25, of b too.
    "algorithms:optimal_token_baseline": ({}, [1.75, 0.75, -1.25, -1.25]),
    # They judge whole samples: `right` is 1 and 0, deviation 0.7071; both samples earned something.
    "algorithms:gdpo": (
        {"whiten": "none", "eps": 1e-6},
        [0.5**0.5, 0.5**0.5, -(0.5**0.5), -(0.5**0.5)],
    ),
    "algorithms:raft": ({}, [1.0, 1.0, 1.0, 1.0]),
}
"""Estimator -> options, and advantages at A, B, a and b."""


def answer(token_id: int) -> Completion:
    return Completion(
        token_ids=np.array([token_id], dtype=np.int32),
        logprobs=np.full(1, np.log(0.5), dtype=np.float32),
        weight_version=np.zeros(1, dtype=np.int32),
        stop=Stop.EOS,
    )


def formed(token_id: int) -> Completion:
    """An answer whose first token a form decided, so that it is read and is no action."""
    return Completion(
        token_ids=np.array([9, token_id], dtype=np.int32),
        logprobs=np.array([0.0, np.log(0.5)], dtype=np.float32),
        weight_version=np.zeros(2, dtype=np.int32),
        stop=Stop.EOS,
        allowed_mass=np.array([0.25, 1.0], dtype=np.float32),
    )


def forked_and_whole(answer=answer) -> TrajectoryColumns:
    """Two episodes of one prompt. The first earns 1 by A, 2 by B, which reads a text of its own and so stands on a row
    of its own, and 1 in the end. The second earns 0 by a and 1 by b, which goes on."""
    forked = EpisodeGraph(Uid(0, 3, 0))
    forked.reward(forked.add([7], answer(1)), 1.0)
    forked.reward(forked.add([8], answer(2)), 2.0)
    whole = EpisodeGraph(Uid(0, 3, 1))
    third = whole.add([7], answer(3))
    whole.reward(whole.add([7, *third.completion.token_ids, 8], answer(4)), 1.0)
    metrics = {GREEDY_REWARD: 2.0}
    rows = forked.trajectories(rewards={"right": 1.0}, metrics=metrics)
    return TrajectoryColumns.from_trajectories(
        [*rows, *whole.trajectories(rewards={"right": 0.0}, metrics=metrics)]
    )


def estimators():
    return {entry.qualified: entry for entry in plugins.load("").registries[ESTIMATORS]}


def advantages(name: str, rows: TrajectoryColumns, **options: object) -> torch.Tensor:
    """The advantages at actions, with the options that go with the numbers by hand, and others."""
    count = int(rows.action_mask.sum())
    half = np.full(count, 0.5, dtype=np.float32)
    outputs = ModelOutputs(
        columns={"old_logprobs": np.log(half), "values": np.zeros(count, dtype=np.float32)},
        sum_pi_squared=half,
    )
    batch = make_reward_batch(rows, outputs, None, with_observations=True)
    estimator = subject(estimators()[name], name, **(BY_HAND[name][0] | options)).make()
    return estimator(batch).advantages[batch.action_mask]


def two_turns(first: float, second: float) -> TrajectoryColumns:
    """Two episodes of two turns on one row each; the first earns what is given."""
    rows = []
    for sample, earned in enumerate(((first, second), (0.5, 1.0))):
        graph = EpisodeGraph(Uid(0, 3, sample))
        graph.reward(graph.add([7], answer(1)), earned[0])
        graph.reward(graph.add([7, 1, 8], answer(2)), earned[1])
        rows += graph.trajectories(rewards={"right": 1.0 - sample}, metrics={GREEDY_REWARD: 2.0})
    return TrajectoryColumns.from_trajectories(rows)


def test_the_estimators_that_judge_whole_episodes_are_those_of_the_page():
    """What they give does not depend on the turn that earned it."""
    early, late = two_turns(3.0, 1.0), two_turns(0.0, 4.0)
    options = {"algorithms:grpo_passk": {"advantage": "analytic", "k": 2}}
    by_episode = {
        name.partition(":")[2]
        for name in BY_HAND
        for more in [options.get(name, {})]
        if torch.equal(advantages(name, early, **more), advantages(name, late, **more))
    }

    page = " ".join((ROOT / "docs/episodes.md").read_text().split())
    (named,) = re.findall(r"([^.]*) judge whole episodes", page)
    assert by_episode == set(re.findall(r"`(\w+)`", named))


@pytest.mark.parametrize("name", sorted(estimators()))
def test_tokens_that_a_form_decided_change_no_estimate(name):
    """They are no actions, so no estimator has to refuse a form: what is left is what it gives without them."""
    made = advantages(name, forked_and_whole(formed))

    torch.testing.assert_close(made, torch.tensor(BY_HAND[name][1]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(estimators()))
def test_a_turn_on_another_row_is_credited_as_by_hand(name):
    options, expected = BY_HAND[name]
    half = np.full(4, 0.5, dtype=np.float32)
    outputs = ModelOutputs(
        columns={"old_logprobs": np.log(half), "values": np.zeros(4, dtype=np.float32)},
        sum_pi_squared=half,
    )
    batch = make_reward_batch(forked_and_whole(), outputs, None, with_observations=True)
    estimator = subject(estimators()[name], name, **options).make()

    made = estimator(batch).advantages

    assert batch.action_mask.tolist() == [[True, False], [True, False], [True, True]]
    torch.testing.assert_close(
        made[batch.action_mask], torch.tensor(expected), atol=1e-5, rtol=1e-5
    )
