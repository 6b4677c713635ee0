import pytest

pytest.importorskip("gymnasium", reason="pip install 'contrib/rlhf-bridge-gymnasium[ecosystem]'")

from rlhf_bridge_gymnasium.config import GymnasiumConfig
from rlhf_bridge_gymnasium.environment import GymnasiumBridge
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

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


def test_an_answer_without_an_action_ends_the_episode_with_the_least_of_the_game(played):
    config = GymnasiumConfig(id="CliffWalking-v1", max_steps=7, no_action_reward=-0.5)

    _, results = played(GymnasiumBridge(config), ["0", "0", "<action>9</action>", "0"])

    # Each of 7 steps could have gone over the cliff, which costs 100.
    assert [one.rewards for one in results[:2]] == [{"game": -1.0}] * 2
    assert results[2].rewards == {"no_action": -0.5, "game": -700.0 + 2.0}
    assert [one.done for one in results] == [False, False, True]
    assert results[-1].metrics == {"steps": 3.0, "without_action": 1.0}


def test_an_answer_without_an_action_plays_the_action_that_an_option_names(played):
    config = GymnasiumConfig(
        id="FrozenLake-v1", actions=MOVES, max_steps=2, without_action="noop", noop="left"
    )

    _, results = played(GymnasiumBridge(config), ["somewhere", "<action>9</action>"])

    assert [one.rewards for one in results] == [{"no_action": -0.1, "game": 0.0}] * 2
    assert [one.done for one in results] == [False, True]
    assert "left was played." in text(results[0].observation)


def by_the_table(game, horizon=60):
    """Return the policy of the largest sum of rewards, by value iteration on the game's table of transitions."""
    table = game.unwrapped.P
    values = dict.fromkeys(table, 0.0)

    def worth(state, action):
        # A little less for what comes later, so that of equal ways the shorter one is taken.
        return sum(
            share * (reward + (0.0 if ends else 0.999 * values[then]))
            for share, then, reward, ends in table[state][action]
        )

    for _ in range(horizon):
        values = {state: max(worth(state, action) for action in table[state]) for state in table}
    return lambda seen: max(table[seen], key=lambda action: worth(seen, action))


EASY = {"kwargs": {"is_slippery": False}}
ORACLES = {
    "FrozenLake-v1": (EASY, by_the_table),
    "FrozenLake8x8-v1": (EASY, by_the_table),
    "CliffWalking-v1": ({}, by_the_table),
    "Taxi-v4": ({}, by_the_table),
    "Blackjack-v1": ({}, lambda game: lambda seen: int(seen[0] < 17)),
    "CartPole-v1": ({}, lambda game: lambda seen: int(seen[2] + seen[3] > 0)),
    "MountainCar-v0": ({"max_steps": 200}, lambda game: lambda seen: 2 if seen[1] >= 0 else 0),
    "Acrobot-v1": ({"max_steps": 500}, lambda game: lambda seen: 2 if seen[5] > 0 else 0),
}
"""Game -> options, and what makes a policy that plays it well."""


def oracle_answers(config, policy_of, seed):
    """Return the actions of a good policy in an episode of the game itself, as numbers."""
    import gymnasium

    game = gymnasium.make(config.id, **config.kwargs)
    policy, (seen, _) = policy_of(game), game.reset(seed=seed)
    answers, ended = [], False
    while not ended and len(answers) < config.max_steps:
        answers.append(policy(seen))
        seen, _, terminated, truncated, _ = game.step(answers[-1])
        ended = terminated or truncated
    game.close()
    return list(map(str, answers))


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_garbage_never_beats_playing_well(played, name):
    options, policy_of = ORACLES[name]
    config = GymnasiumConfig(id=name, **options)

    def earned(answers, seed):
        _, results = played(GymnasiumBridge(config), answers, seed=seed)
        return sum(sum(one.rewards.values()) for one in results)

    seeds = range(3)
    well = [earned(oracle_answers(config, policy_of, seed), seed) for seed in seeds]
    badly = [
        earned([garbage] * config.max_steps, seed)
        for garbage in ("", "I will win", "<action>-1</action>")
        for seed in seeds
    ]

    assert max(badly) < min(
        well
    )  # by no_action_reward at least: a hand of Blackjack can be lost by playing well
    assert sum(well) / len(well) > max(badly) + 0.5


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
    ("options", "message", "code"),
    [
        (
            {"id": "NoSuch-v0"},
            "expected an environment of Gymnasium in id",
            "environment/not-loadable",
        ),
        (
            {"id": "FrozenLake-v1", "kwargs": {"holes": 3}},
            "and its arguments in kwargs",
            "environment/not-loadable",
        ),
        ({"id": "Pendulum-v1"}, "expected discrete actions", "environment/actions-not-discrete"),
        (
            {"id": "FrozenLake-v1", "actions": ["a"]},
            "expected as many different words",
            "environment/number-of-actions",
        ),
        (
            {"id": "FrozenLake-v1", "without_action": "noop", "noop": "9"},
            "expected one of 0, 1, 2, 3, the actions of FrozenLake-v1; got '9'",
            "environment/unknown-action",
        ),
        (
            {"id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}},
            "env.gymnasium.least_reward",
            "environment/no-least-reward",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        GymnasiumBridge(GymnasiumConfig(**options))
