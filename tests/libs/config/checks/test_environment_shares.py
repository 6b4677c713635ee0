"""Several environments in one run: their shares, and where shares are written."""

import pytest

from rlhf_config import Layer
from rlhf_config.checks.features import environment_shares
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

RUN = ("--executor", "turns", "--rollout.max_length", "2048")


@pytest.fixture
def shares(resolved):
    """The shares that environments get with these entries of ``--env``."""

    def of(*entries, more=(), files=()):
        found = resolved("--env", *entries, *more, *RUN, files=files)
        return environment_shares(found.selections["env.use"])

    return of


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["maze"], {"maze": 1.0}),
        (["a=maze", "b=maze"], {"a": 0.5, "b": 0.5}),
        (["a=maze=0.7", "b=maze"], {"a": 0.7, "b": 0.3}),
        # 1 - 0.4 is left for two.
        (["a=maze=0.4", "b=maze", "c=maze"], {"a": 0.4, "b": 0.3, "c": 0.3}),
        (["a=maze=3", "b=maze=1"], {"a": 0.75, "b": 0.25}),
    ],
)
def test_shares_add_up_to_1_and_those_without_one_get_what_is_left(shares, entries, expected):
    assert shares(*entries) == pytest.approx(expected)


def test_environments_with_a_share_may_not_take_everything_from_the_others(shares):
    with pytest.raises(
        ConfigError,
        match=r"--env: .* nothing is left for b. .* b=0.5",
        check=has_code("config/no-share-left"),
    ):
        shares("a=maze=1.5", "b=maze")


@pytest.mark.parametrize("share", ["0", "-1", "nan"])
def test_a_share_is_above_0(shares, share):
    with pytest.raises(ConfigError, match=r"env.a.share", check=has_code("config/out-of-range")):
        shares(f"a=maze={share}")


def test_a_share_may_stand_in_the_environments_section(shares):
    assert shares("a=maze", "b=maze", more=["--env.a.share", "0.2"]) == {"a": 0.2, "b": 0.8}


def test_of_a_file_and_the_command_line_the_latter_gives_the_share(shares):
    in_file = Layer.of({"env": {"use": ["a=maze=0.9"], "a": {"share": 0.9}}})

    assert shares("a=maze=0.1", "b=maze", files=(in_file,))["a"] == 0.1


def test_a_typed_share_wins_over_an_entry_of_a_file(resolved):
    in_file = Layer.of({"env": {"use": ["a=maze=0.9", "b=maze"]}})

    found = resolved("--env.a.share", "0.1", *RUN, files=(in_file,))

    assert environment_shares(found.selections["env.use"]) == {"a": 0.1, "b": 0.9}


def test_two_shares_in_one_command_are_refused(shares):
    with pytest.raises(
        ConfigError,
        match=r"--env.a.share: --env maze=0.3 gives another share",
        check=has_code("config/two-shares"),
    ):
        shares("a=maze=0.3", "b=maze", more=["--env.a.share", "0.2"])


def test_own_options_stand_in_the_section_of_the_label_and_are_recorded(resolved):
    found = resolved("--env", "a=maze=0.7", "b=maze", "--env.a.gamma", "0.5", *RUN)

    a, b = found.selections["env.use"]
    assert (a.name, a.options.gamma, b.name, b.options.gamma) == ("a", 0.5, "b", 1.0)
    assert found.tree["env"]["use"] == ["a=sample:maze", "b=sample:maze"]
    assert (found.tree["env"]["a"]["share"], found.tree["env"]["a"]["gamma"]) == (0.7, 0.5)


def test_a_section_of_an_environment_that_another_layer_names_waits_in_its_file(resolved):
    in_file = Layer.of({"env": {"use": ["a=maze"], "a": {"gamma": 0.5}}})

    assert resolved("--env", "maze", *RUN, files=(in_file,)).unused == ("env.a",)
