"""One trajectory: impossible ones are refused with their uid."""

import numpy as np
import pytest

from rlhf_core.contracts import Stop, Trajectory, Turn, Uid


def test_a_last_turn_that_hit_the_limit_makes_the_trajectory_truncated():
    whole = Trajectory(
        uid=Uid(0, 1),
        token_ids=np.array([1, 2], np.int32),
        action_mask=np.array([False, True]),
        rollout_logprobs=np.zeros(1, np.float32),
        weight_version=np.zeros(1, np.int32),
        turns=(Turn(start=1, end=2),),
    )
    cut = Trajectory(
        **{name: getattr(whole, name) for name in whole.__dataclass_fields__ if name != "turns"},
        turns=(Turn(start=1, end=2, stop=Stop.LENGTH),),
    )

    assert cut.truncated
    assert not whole.truncated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_mask": np.array([True, True])}, "first token is an action"),
        ({"action_mask": np.array([False])}, "a mask of 1"),
        ({"rollout_logprobs": np.zeros(3, np.float32)}, "3 rollout_logprobs"),
        ({"turns": ()}, "do not cover"),
        ({"turns": (Turn(start=1, end=1),)}, "is empty"),
        ({"turns": (Turn(start=1, end=9),)}, "outside"),
        (
            {"action_mask": np.array([False, False]), "rollout_logprobs": np.zeros(0, np.float32)}
            | {"weight_version": np.zeros(0, np.int32)},
            "a turn has no action token",
        ),
    ],
)
def test_an_impossible_trajectory_is_refused_with_its_uid(change, message):
    good = {
        "uid": Uid(0, 3),
        "token_ids": np.array([1, 2], np.int32),
        "action_mask": np.array([False, True]),
        "rollout_logprobs": np.zeros(1, np.float32),
        "weight_version": np.zeros(1, np.int32),
        "turns": (Turn(start=1, end=2),),
    }

    with pytest.raises(ValueError, match=message) as caught:
        Trajectory(**good | change)

    assert "0.3.0.0" in str(caught.value)


def test_uid_survives_text():
    assert Uid.parse(str(Uid(-1, 12, 3, 4))) == Uid(-1, 12, 3, 4)
