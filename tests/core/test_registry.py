import pytest

from rlhf_core import AmbiguousComponent, Component, Registered, UnknownComponent
from rlhf_core.registry import Registry


@pytest.fixture
def registry():
    made = Registry("rlhf_policy_losses", "policy loss")
    for plugin, name, aliases in (
        ("b", "clip", ("ppo",)),
        ("a", "clip", ()),
        ("a", "plain", ("pg",)),
    ):
        made.add(Registered(Component(name=name, factory=dict, aliases=aliases), plugin))
    return made


def test_entries_come_sorted_by_name_and_plugin(registry):
    assert [entry.qualified for entry in registry] == ["a:clip", "b:clip", "a:plain"]
    assert registry.names() == ["clip", "plain"]
    assert len(registry) == 3


@pytest.mark.parametrize(
    ("name", "qualified"),
    [
        ("plain", "a:plain"),
        ("pg", "a:plain"),
        ("a:pg", "a:plain"),
        ("b:clip", "b:clip"),
        ("ppo", "b:clip"),
    ],
)
def test_unique_names_aliases_and_qualified_names_are_found(registry, name, qualified):
    assert registry.get(name).qualified == qualified


def test_an_ambiguous_name_lists_the_qualified_ones(registry):
    with pytest.raises(
        AmbiguousComponent, match=r"policy loss 'clip' comes from 2 plugins.*a:clip.*b:clip"
    ):
        registry.get("clip")


@pytest.mark.parametrize(
    ("name", "near"), [("clp", "clip"), ("plian", "plain"), ("c:plain", "plain")]
)
def test_an_unknown_name_gets_the_nearest_one(registry, name, near):
    with pytest.raises(UnknownComponent, match=f"Did you mean '{near}'.*Installed: clip, plain"):
        registry.get(name)


def test_an_empty_registry_says_so():
    with pytest.raises(UnknownComponent, match="Installed: none"):
        Registry("rlhf_engines", "engine").get("x")
