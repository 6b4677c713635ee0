"""One section against one options model: what is converted, and what is said of the rest."""

import pytest
from pydantic import Field, model_validator

from rlhf_config import Layer, parse_flags
from rlhf_config.layers import merge
from rlhf_config.problems import Labels, Report
from rlhf_config.sections import Validator, options_of
from rlhf_core import Config, ConfigError, PluginError
from rlhf_testing.errors import has_code


class Inner(Config):
    lr: float = Field(0.5, gt=0.0, description="rate")
    name: str = Field(description="what it is called")


class Outer(Config):
    steps: int = Field(1, ge=1, description="steps")
    words: tuple[str, ...] = Field((), description="some")
    limits: dict[str, float] = Field({}, description="by layer")
    inner: Inner = Field(Inner(name="x"), description="a section")
    spare: Inner | None = Field(None, description="a section that may be unset")


class Bare(Config):
    first: int = Field(description="the first number")
    inner: Inner


class Odd(Config):
    depth: int = Field(1, description="deep")

    @model_validator(mode="after")
    def even(self):
        if self.depth == 3:
            raise RuntimeError("boom")
        if self.depth % 2 == 0:
            raise ValueError(f"depth is {self.depth}; expected an odd one")
        return self


@pytest.fixture
def validated():
    """Validate a section at the path ``here``; raise what the report has."""

    def check(model, values, *words, owner=""):
        tree = merge([Layer.of({"here": values}, "a.toml"), parse_flags(list(words))])
        report = Report()
        known = [f"here.{path}" for path in options_of(model)]
        validator = Validator(Labels(tree), known, report)
        found = validator.validate(model, tree.values.get("here", {}), "here", owner)
        report.raise_if_any()
        return found

    return check


def message(validated, *arguments, **keywords):
    with pytest.raises(ConfigError) as caught:
        validated(*arguments, **keywords)
    return str(caught.value)


def test_options_are_the_leaves_of_nested_models():
    assert list(options_of(Outer)) == [
        *("steps", "words", "limits"),
        *("inner.lr", "inner.name", "spare.lr", "spare.name"),
    ]
    assert list(options_of(Bare, "a.b")) == ["a.b.first", "a.b.inner.lr", "a.b.inner.name"]


def test_an_empty_section_is_the_defaults(validated):
    assert validated(Outer, {}) == Outer()


def test_words_of_the_command_line_take_the_types_of_their_options(validated):
    found = validated(
        Outer,
        {"inner": {"name": "y"}},
        *("--here.steps", "3", "--here.words", "a", "b", "--here.inner.lr=0.25"),
        *("--here.limits.head", "2", "--here.spare", "none"),
    )

    assert found == Outer(
        steps=3, words=("a", "b"), limits={"head": 2.0}, inner=Inner(lr=0.25, name="y")
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"steps": 0}, "a.toml: here.steps: expected at least 1, got 0"),
        ({"steps": "x"}, "a.toml: here.steps: expected a number, without quotes, got 'x'"),
        ({"steps": True}, "a.toml: here.steps: expected a number, got True"),
        ({"inner": {"name": "y", "lr": -1.0}}, "a.toml: here.inner.lr: expected a value above 0"),
        ({"inner": 3}, "a.toml: here.inner: 'here.inner' is a section, not an option"),
        ({"inner": "none"}, "a.toml: here.inner: 'here.inner' is a section, not an option"),
        (
            {"steps": {"x": 1}},
            "a.toml: here.steps.x: 'here.steps' is an option, not a section; --here.steps VALUE",
        ),
        ({"step": 1}, "a.toml: here.step: there is no such option. Did you mean here.steps?"),
        ({"more": {"a": 1}}, "a.toml: here.more.a: there is no such option"),
    ],
)
def test_what_is_wrong_is_named_where_it_was_written(validated, values, expected):
    assert message(validated, Outer, values).startswith(expected)


def test_a_word_too_many_is_shown_once(validated):
    assert message(validated, Outer, {}, "--here.steps", "1", "2").count("'1'") <= 1


def test_a_section_that_may_be_unset_is_validated_like_any_other(validated):
    assert validated(Outer, {"spare": {"name": "z"}}).spare == Inner(name="z")
    assert validated(Outer, {"spare": "none"}).spare is None
    assert message(validated, Outer, {"spare": {"name": "z", "lr": 0.0}}).startswith(
        "a.toml: here.spare.lr: expected a value above 0, got 0.0"
    )


def test_required_options_are_asked_for_with_what_they_mean(validated):
    assert message(validated, Bare, {}) == (
        "--here.first: is required but not set; expected: the first number\n"
        "  also wrong: --here.inner.name"
    )


def test_only_what_is_missing_of_a_section_is_asked_for(validated):
    text = message(validated, Bare, {"first": 1, "inner": {"lr": 0.1}})

    assert text == ("--here.inner.name: is required but not set; expected: what it is called")


def test_the_owner_of_the_option_is_named(validated):
    text = message(validated, Outer, {"steps": 0}, owner="thing (some-plugin 1.0)")

    assert "option of thing (some-plugin 1.0)" in text


def test_all_problems_of_a_section_are_found_at_once(validated):
    text = message(validated, Outer, {"step": 1, "steps": 0, "inner": {"name": 3}})

    assert "also wrong: " in text
    assert all(name in text for name in ("here.step:", "here.steps", "here.inner.name"))


def test_a_components_own_check_is_told_as_it_says_it(validated):
    assert message(validated, Odd, {"depth": 2}) == "--here: depth is 2; expected an odd one"


def test_a_check_that_crashes_is_the_plugins_fault(validated):
    with pytest.raises(PluginError, match=r"thing.*boom", check=has_code("plugin/check-failed")):
        validated(Odd, {"depth": 3}, owner="thing")


def test_what_is_refused_is_none_and_in_the_report():
    report = Report()
    validator = Validator(Labels(merge([])), ["steps"], report)

    assert validator.validate(Outer, {"steps": 0}) is None
    assert report
    assert validator.validate(Outer, {"steps": 2}) == Outer(steps=2)


def test_an_option_that_nothing_is_near_to_is_answered_with_the_help_of_its_own_command():
    tree, report = Layer.of({"zzzz": 1}, "a.toml"), Report()
    Validator(Labels(tree), ["steps"], report, "eval").validate(Config, tree.values)

    with pytest.raises(ConfigError, match="--help", check=has_code("config/unknown-option")):
        report.raise_if_any()
