"""``dynamic_sampling``: prompts that are neither solved nor hopeless."""

import pytest

from rlhf_cli.train import DEFAULTS
from rlhf_config import Layer, read_toml, resolve_options
from rlhf_config.train import TRAIN
from rlhf_core import ConfigError
from rlhf_core.plugins import load
from rlhf_plugin_algorithms.filters.dynamic_sampling import DynamicSampling, DynamicSamplingConfig
from rlhf_testing.errors import has_code


@pytest.fixture
def dynamic(info):
    def keep(group, **options):
        return DynamicSampling(DynamicSamplingConfig(**options)).keep(group, info)

    return keep


@pytest.fixture
def group(Row, columns):
    """A group with these rewards."""

    def build(*rewards):
        return columns(*(Row(reward=reward) for reward in rewards))

    return build


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1.0, 0.0, 0.0), None),
        ((1.0, 1.0, 1.0), "too_easy"),
        ((0.0, 0.0), "too_hard"),
        ((1.0, -1.0), "too_hard"),  # the mean, 0, is not more than 0
        ((0.5, 0.5), None),  # equal rewards inside of the range are kept
        ((2.0, 0.5), "too_easy"),
    ],
)
def test_a_prompt_is_kept_if_its_mean_is_strictly_inside(group, dynamic, rewards, expected):
    assert dynamic(group(*rewards)) == expected


@pytest.mark.parametrize("size", [1, 7, 8, 64])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7])
def test_a_mean_that_equals_a_bound_is_outside_also_where_neither_is_exact(
    group, dynamic, value, size
):
    equal = group(*[value] * size)

    assert dynamic(equal, low=value, high=1.0) == "too_hard"
    assert dynamic(equal, low=0.0, high=value) == "too_easy"


def test_what_shapers_took_away_counts_unless_a_reward_is_named(Row, columns, dynamic):
    solved = columns(*(Row(reward=0.7, rewards={"right": 1.0}) for _ in range(3)))

    assert dynamic(solved) is None
    assert dynamic(solved, reward="right") == "too_easy"


def test_a_reward_that_does_not_exist_is_refused_with_those_that_do(Row, columns, dynamic):
    with pytest.raises(ConfigError, match=r"'rigth'.*right", check=has_code("reward/unknown")):
        dynamic(columns(Row(rewards={"right": 1.0})), reward="rigth")


def resolved(**given):
    values = {"model.path": "m", "rollout.filters": ("dynamic_sampling",), **given}
    layers = [read_toml(DEFAULTS, defaults=True), Layer.of_paths(values, "words")]
    return resolve_options(layers, load(), TRAIN)


NAMED = "rollout.dynamic_sampling.reward"
ROWS = {"data.train": ("rows.jsonl",), "reward.use": ("exact_match", "math")}


def test_a_reward_that_the_run_does_not_have_is_refused_before_it_starts():
    """It was found at the first sample, when models had been loaded."""
    with pytest.raises(ConfigError, check=has_code("reward/unknown")) as caught:
        resolved(**ROWS, **{NAMED: "exact_mach"})

    for part in (
        "rollout.dynamic_sampling.reward exact_mach",
        "Did you mean 'exact_match'?",
        "Rewards: exact_match, math",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        ROWS | {NAMED: "math", "rollout.executor": "single_turn"},
        # What an environment calls its rewards is known when it gives them.
        {"env.use": ("tools",), NAMED: "its own", "env.tools.functions": ("math:sin",)},
        {"env.use": ("tools",), **ROWS, NAMED: "its own", "env.tools.functions": ("math:sin",)},
    ],
)
def test_a_reward_that_may_come_is_accepted(given):
    found = resolved(**{"rollout.executor": "multi_turn", "rollout.max_length": 4096} | given)

    assert found.one("rollout.filters").options.reward == given[NAMED]


def test_a_group_with_an_unknown_reward_is_kept(Row, columns, dynamic):
    some = columns(Row(rewards={"right": 1.0}), Row(rewards={"other": 1.0}))

    assert dynamic(some, reward="right") is None


def test_an_episode_of_several_sequences_counts_once_in_the_mean(Row, columns, dynamic):
    rows = [Row(reward=1.0, sample=0, segment=segment) for segment in range(9)]
    some = columns(*rows, Row(reward=0.0, sample=1))

    assert dynamic(some, high=0.6) is None  # by sequence the mean is 0.9
