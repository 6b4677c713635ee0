"""The first pass: which components are picked, before any option is looked at."""

import pytest

from rlhf_config import Layer, parse_flags
from rlhf_config.layers import merge
from rlhf_config.problems import Labels
from rlhf_config.run import RewardConfig, SeeingActor
from rlhf_config.selection import SelectorEntry, select, select_slot, written_names
from rlhf_config.train import SLOTS, TRAIN
from rlhf_core import Component, ConfigError, Registered, UnknownComponent
from rlhf_core.plugins import empty
from rlhf_testing.errors import has_code

BY_PATH = {slot.path: slot for slot in SLOTS}
OPTIM, REWARD = BY_PATH["actor.optim"], BY_PATH["reward.use"]

REWARD_FILE = "def score(response, row):\n    return 0.0\n"


@pytest.fixture
def choices(plugins):
    """What the flags pick in one slot."""

    def of(slot, *words, files=()):
        tree = merge([*files, parse_flags(list(words))])
        return select_slot(slot, tree, Labels(tree), plugins, TRAIN)

    return of


def names(found):
    return [choice.registered.name for choice in found]


@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: slot.path)
def test_every_selector_is_an_option_of_the_core_and_many_means_a_list(slot):
    info = TRAIN.section_model(slot).model_fields[slot.path.rpartition(".")[2]]

    assert (info.annotation == tuple[str, ...]) == slot.many


@pytest.mark.parametrize(
    ("slot", "model"), [(OPTIM, SeeingActor), (REWARD, RewardConfig)], ids=["actor", "reward"]
)
def test_the_section_of_a_selector_is_the_one_that_it_stands_in(slot, model):
    assert TRAIN.section_model(slot) is model


def test_a_choice_knows_its_section_and_its_owner(choices):
    (choice,) = choices(OPTIM, "--optim", "momentum")

    assert choice.section == "actor.momentum"
    assert choice.names == {"momentum"}
    assert choice.recorded == "sample:momentum"
    assert choice.owner == "momentum (sample)"


def test_an_alias_is_another_name_of_the_same_section(choices):
    (choice,) = choices(OPTIM, "--optim", "simple")

    assert choice.section == "actor.plain"
    assert choice.names == {"plain", "simple"}
    assert choice.recorded == "sample:plain"


def test_a_list_is_picked_in_the_order_in_which_it_was_written(choices):
    slot = BY_PATH["rollout.filters"]

    assert names(choices(slot, "--rollout.filters", "spread", "length")) == ["spread", "length"]
    assert names(choices(slot, "--rollout.filters", "length", "spread")) == ["length", "spread"]


def test_one_name_in_a_file_is_a_list_of_one(choices):
    found = choices(REWARD, files=[Layer.of({"reward": {"use": "pattern"}})])

    assert names(found) == ["pattern"]


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (BY_PATH["env.use"], ()),
        (BY_PATH["env.use"], ("--env", "none")),
        (BY_PATH["rollout.filters"], ()),
        (BY_PATH["rollout.filters"], ("--rollout.filters", "none")),
    ],
)
def test_what_is_optional_may_be_unset(choices, slot, words):
    assert choices(slot, *words) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--optim: expected an optimizer; installed: momentum, picky, plain"),
        (("--optim", "none"), None),
        (("--optim", ""), None),
        (("--optim", "plain", "picky"), None),
    ],
)
def test_what_is_required_is_one_name_and_the_message_lists_the_installed_ones(
    choices, words, message
):
    with pytest.raises(ConfigError) as caught:
        choices(OPTIM, *words)

    assert str(caught.value).startswith("--optim")
    assert "momentum, picky, plain" in str(caught.value)
    assert message is None or str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "shown"),
    [(3, "3"), (True, "True"), (["pattern", 3], "'pattern', 3"), ([""], "''")],
)
def test_what_is_no_name_is_shown_as_it_was_written(choices, value, shown):
    layer = Layer.of({"reward": {"use": value}}, "a.toml")

    with pytest.raises(ConfigError) as caught:
        choices(REWARD, files=[layer])

    assert str(caught.value) == (
        f"a.toml: reward.use: expected the name of a reward, got {shown}; "
        "installed: clashing, code, pattern, reads_texts, reads_tokens"
    )


def test_a_name_that_nobody_provides_gets_the_nearest_one(choices):
    with pytest.raises(
        UnknownComponent, match=r"^--optim.*'momentum'", check=has_code("plugin/unknown-component")
    ):
        choices(OPTIM, "--optim", "momentun")


def test_a_kind_of_which_nothing_is_installed_says_so(plugins):
    plugins.registries["rlhf_optimizers"] = empty().registries["rlhf_optimizers"]
    tree = merge([])

    with pytest.raises(
        ConfigError,
        match="no plugin with an optimizer is installed",
        check=has_code("config/wrong-type"),
    ):
        select_slot(OPTIM, tree, Labels(tree), plugins, TRAIN)


def test_a_function_in_a_file_is_wrapped_and_recorded_as_it_was_written(choices, plugins, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(REWARD_FILE)

    (choice,) = choices(REWARD, "--reward", f"{path}:score")

    assert choice.registered.name == "code"
    assert choice.section == "reward.score"
    assert choice.wraps == choice.recorded == f"{path}:score"
    assert choice.names == {"score"}
    assert str(path) in plugins.loaded


def test_two_wrappers_of_code_do_not_take_turns(choices, plugins, tmp_path):
    (tmp_path / "mine.py").write_text(REWARD_FILE)
    other = Component(name="wrap", factory=dict, provides=frozenset({"wraps_code"}))
    plugins.registries["rlhf_rewards"].add(Registered(other, "other"))

    with pytest.raises(
        ConfigError, match="sample:code, other:wrap", check=has_code("config/ambiguous-name")
    ):
        choices(REWARD, "--reward", f"{tmp_path / 'mine.py'}:score")


def test_all_slots_are_picked_in_their_order(plugins):
    from tests.core.sample_plugin import DEFAULTS

    tree = merge([Layer.of(DEFAULTS), parse_flags(["--reward", "pattern"])])

    found = select(tree, Labels(tree), plugins, TRAIN)

    picked = [choice.slot.path for choice in found]
    assert picked == [slot.path for slot in SLOTS if slot.path in picked]
    assert {"runtime.name", "reward.use", "critic.optim"} <= set(picked)


def test_names_of_overridden_layers_are_remembered():
    """Their sections may wait in a file without being called unknown."""
    layers = [
        Layer.of({"actor": {"optim": "plain"}, "reward": {"use": ["pattern", "code"]}}),
        parse_flags(["--optim", "momentum", "--reward", "clashing"]),
    ]

    assert list(written_names(OPTIM, layers)) == ["plain", "momentum"]
    assert list(written_names(REWARD, layers)) == ["pattern", "code", "clashing"]


@pytest.mark.parametrize(
    ("value", "expected"), [(3, []), (True, []), (0.5, []), ({"a": 1}, []), ([3, "x"], ["x"])]
)
def test_what_is_no_name_is_not_remembered(value, expected):
    assert list(written_names(OPTIM, [Layer.of({"actor": {"optim": value}})])) == expected


@pytest.mark.parametrize("value", [3, True, ["plain", 3]])
def test_what_is_no_name_may_be_overridden(resolved, value):
    overridden = Layer.of({"actor": {"optim": value}}, "a.toml")

    found = resolved("--optim", "momentum", files=[overridden])

    assert found.one("actor.optim").registered.name == "momentum"
    with pytest.raises(
        ConfigError, match=r"^--actor\.momentun\.lr", check=has_code("config/unknown-option")
    ):
        resolved("--optim", "momentum", "--actor.momentun.lr", "1", files=[overridden])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("maze", ("maze", None, None)),
        ("maze=0.7", ("maze", None, "0.7")),
        ("maze=-1", ("maze", None, "-1")),
        ("big=maze", ("maze", "big", None)),
        ("big=sample:maze=2", ("sample:maze", "big", "2")),
        ("folder/my.py:Maze=.5", ("folder/my.py:Maze", None, ".5")),
        ("Not=a_label", ("Not=a_label", None, None)),
    ],
)
def test_an_entry_of_a_labeled_selector_has_a_label_a_name_and_a_share(written, expected):
    entry = SelectorEntry.of(BY_PATH["env.use"], written)

    assert (entry.name, entry.label, entry.share) == expected
    assert SelectorEntry.of(REWARD, written) == SelectorEntry(written)


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.py").write_text("class Maze: ...")

    assert SelectorEntry.of(BY_PATH["env.use"], "a=b.py:Maze") == SelectorEntry("a=b.py:Maze")


def test_a_label_names_the_section_and_is_recorded(choices):
    big, small = choices(BY_PATH["env.use"], "--env", "big=maze=0.7", "maze")

    assert (big.section, big.names, big.recorded) == ("env.big", {"big"}, "big=sample:maze")
    assert (small.section, small.recorded) == ("env.maze", "sample:maze")


def test_one_environment_twice_needs_a_label(resolved):
    with pytest.raises(ConfigError, match="LABEL=NAME", check=has_code("config/section-taken")):
        resolved("--env", "maze", "maze", "--executor", "turns")


def test_a_label_cannot_be_an_option_of_the_section(resolved):
    with pytest.raises(
        ConfigError, match=r"use=maze.*'env\.use'", check=has_code("config/label-taken")
    ):
        resolved("--env", "use=maze", "--executor", "turns")
