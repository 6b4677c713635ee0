import pytest

pytest.importorskip("gymnasium", reason="pip install 'contrib/rlhf-bridge-gymnasium[ecosystem]'")

from rlhf_bridge_gymnasium.config import GymnasiumConfig
from rlhf_bridge_gymnasium.environment import GymnasiumBridge
from rlhf_core import ConfigError

MOVES = ("left", "down", "right", "up")


def text(observation):
    return observation.messages[0]["content"]


def test_a_lake_is_crossed_by_words(played):
    """The way around the holes of the 4x4 lake of Gymnasium's documentation."""
    config = GymnasiumConfig(id="FrozenLake-v1", actions=MOVES, kwargs={"is_slippery": False})
    way = ["down", "I go <action>Down</action>", "right", "right", "down", "right"]

    seen, results = played(GymnasiumBridge(config), way)

    assert "*S*FFF" in text(seen) or "SFFF" in text(seen)
    assert "Answer with one of: left, down, right, up." in text(seen)
    assert [one.rewards["game"] for one in results] == [0, 0, 0, 0, 0, 1]
    assert results[-1].done


def test_an_answer_without_an_action_changes_nothing_and_costs(played):
    config = GymnasiumConfig(id="FrozenLake-v1", max_steps=2, no_action_reward=-0.5)

    _, results = played(GymnasiumBridge(config), ["somewhere", "<action>9</action>"])

    assert [one.rewards for one in results] == [{"no_action": -0.5}] * 2
    assert [one.done for one in results] == [False, True]
    assert results[-1].metrics == {"steps": 2.0, "without_action": 2.0}


@pytest.mark.parametrize(
    "name", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v3", "Blackjack-v1", "CartPole-v1"]
)
def test_the_seed_alone_decides(played, name):
    import gymnasium

    if name not in gymnasium.registry:
        name = name.replace("v3", "v4")
    first, second = (
        played(GymnasiumBridge(GymnasiumConfig(id=name)), ["0", "1", "0"], seed=5) for _ in range(2)
    )

    assert first == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "NoSuch-v0"}, "expected an environment of Gymnasium in id"),
        ({"id": "FrozenLake-v1", "kwargs": {"holes": 3}}, "and its arguments in kwargs"),
        ({"id": "Pendulum-v1"}, "expected discrete actions"),
        ({"id": "FrozenLake-v1", "actions": ["a"]}, "expected as many different words"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        GymnasiumBridge(GymnasiumConfig(**options))
