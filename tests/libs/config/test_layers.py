import pytest

from rlhf_config import Layer
from rlhf_config.layers import leaves, lookup, merge
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


def test_later_layers_win_leaf_by_leaf():
    first = Layer.of({"train": {"steps": 1, "epochs": 2}, "seed": 3}, "first")
    second = Layer.of({"train": {"steps": 9}}, "second")

    merged = merge([first, second])

    assert merged.values == {"train": {"steps": 9, "epochs": 2}, "seed": 3}
    assert merged.origins["train.steps"].label == "second: train.steps"
    assert merged.origins["train.epochs"].label == "first: train.epochs"


def test_lists_are_replaced_as_a_whole():
    merged = merge([Layer.of({"stop": ["a", "b"]}), Layer.of({"stop": ["c"]})])

    assert merged.values == {"stop": ["c"]}


def test_merging_leaves_the_layers_as_they_were():
    values = {"train": {"steps": 1}}
    merge([Layer.of(values), Layer.of({"train": {"steps": 2}})])

    assert values == {"train": {"steps": 1}}


@pytest.mark.parametrize(
    ("below", "above", "code"),
    [
        (
            {"actor": {"optim": "adam"}},
            {"actor": {"optim": {"lr": 1}}},
            "config/option-no-section",
        ),
        ({"train": {"steps": 1}}, {"train": 3}, "config/section-no-option"),
    ],
)
def test_a_section_cannot_meet_a_value(below, above, code):
    with pytest.raises(ConfigError, check=has_code(code)):
        merge([Layer.of(below), Layer.of(above)])


def test_lookup_finds_values_and_tables_and_nothing():
    values = {"a": {"b": {"c": 1}}}

    assert lookup(values, "a.b.c") == 1
    assert lookup(values, "a.b") == {"c": 1}
    assert lookup(values, "a.x.c") is None
    assert lookup(values, "a.b.c.d") is None


def test_leaves_are_everything_that_is_no_table():
    assert dict(leaves({"a": {"b": 1, "c": {"d": [2]}}, "e": {}})) == {
        "a.b": 1,
        "a.c.d": [2],
        "e": {},
    }
