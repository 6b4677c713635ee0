import pytest

from rlhf_core import AmbiguousComponent, Component, Registered, UnknownComponent
from rlhf_core.registry import Registry
from rlhf_testing.errors import has_code


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
        AmbiguousComponent,
        match=r"'clip'.*a:clip.*b:clip",
        check=has_code("plugin/ambiguous-component"),
    ):
        registry.get("clip")


@pytest.mark.parametrize(
    ("name", "near"), [("clp", "clip"), ("plian", "plain"), ("c:plain", "plain")]
)
def test_an_unknown_name_gets_the_nearest_one(registry, name, near):
    with pytest.raises(
        UnknownComponent,
        match=f"'{near}'.*: clip, plain",
        check=has_code("plugin/unknown-component"),
    ):
        registry.get(name)


def test_an_empty_registry_says_so():
    with pytest.raises(
        UnknownComponent, match=": none", check=has_code("plugin/unknown-component")
    ):
        Registry("rlhf_engines", "engine").get("x")


@pytest.fixture
def grown():
    """A plugin that two others have become a part of."""
    made = Registry("rlhf_policy_losses", "policy loss")
    plain = Component(name="plain", factory=dict, aliases=("pg",))
    made.add(Registered(plain, "whole", former=("first", "second")))
    return made


@pytest.mark.parametrize("name", ["first:plain", "second:pg"])
def test_the_name_of_a_plugin_that_became_a_part_is_found_with_a_warning(grown, name):
    with pytest.warns(DeprecationWarning, match=f"{name} is whole:plain now"):
        assert grown.get(name).qualified == "whole:plain"


def test_a_plugin_of_a_former_name_comes_before_it(grown):
    grown.add(Registered(Component(name="plain", factory=dict), "first"))

    assert grown.get("first:plain").qualified == "first:plain"
