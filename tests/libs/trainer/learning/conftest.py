import numpy as np
import pytest

from rlhf_core.contracts import Trajectory, TrajectoryColumns, Turn, Uid


@pytest.fixture
def batch():
    """Row 0: two turns of 2 and 1 actions with an environment token between; row 1: one turn of 2 actions."""
    two_turns = Trajectory(
        uid=Uid(0, 4, 0),
        token_ids=np.array([9, 1, 2, 8, 3], np.int32),
        action_mask=np.array([False, True, True, False, True]),
        rollout_logprobs=np.zeros(3, np.float32),
        weight_version=np.zeros(3, np.int32),
        turns=(Turn(start=1, end=3, reward=0.5), Turn(start=4, end=5, reward=0.25)),
        reward=2.0,
    )
    one_turn = Trajectory(
        uid=Uid(0, 4, 1),
        token_ids=np.array([9, 1, 2], np.int32),
        action_mask=np.array([False, True, True]),
        rollout_logprobs=np.zeros(2, np.float32),
        weight_version=np.zeros(2, np.int32),
        turns=(Turn(start=1, end=3),),
        reward=-1.0,
    )
    return TrajectoryColumns.from_trajectories([two_turns, one_turn])
