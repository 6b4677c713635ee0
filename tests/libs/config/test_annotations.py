from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from pydantic import Field

from rlhf_config.annotations import Mismatch, convert, item_type, type_name
from rlhf_config.layers import Words
from rlhf_core import Config

Share = Annotated[float, Field(ge=0)]


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, Words(("3",)), "3"),  # pydantic reads the number
        (bool, Words(), True),
        (bool | None, Words(), True),
        (str | None, Words(("none",)), None),
        (str, Words(("none",)), "none"),
        (Literal["none", "full"], Words(("none",)), "none"),
        (Literal[0, 1, 2], Words(("2",)), 2),
        (tuple[str, ...], Words(("a", "b")), ["a", "b"]),
        (tuple[str, ...], Words(("none",)), []),
        (tuple[Share, ...], Words(("0.5", "0.5")), ["0.5", "0.5"]),
        (float | None, "none", None),
        (tuple[str, ...], "a", ["a"]),
        (tuple[str, ...], ["none"], ["none"]),
        (float, 3, 3),
        (int, 3, 3),
        (bool, True, True),
        (Mapping[str, float], {"a": Words(("1",))}, {"a": "1"}),
        (Mapping[str, bool], {"a": Words()}, {"a": True}),
        (Mapping[str, object], {"a": {"b": Words(("1",)), "c": 2}}, {"a": {"b": "1", "c": 2}}),
        (str | int, "3", "3"),
    ],
)
def test_values_take_the_shape_of_their_option(annotation, value, expected):
    assert convert(annotation, value) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "part"),
    [
        (int, Words(), "expected a value"),
        (str, Words(("a", "b")), "expected one value, got 2"),
        (tuple[str, ...], Words(), "at least one value"),
        (int, True, "expected a number"),
        (float, "0.5", "without quotes"),
        (bool, "true", "without quotes"),
        (bool, 1, "true or false"),
        (tuple[float, ...], ["1.0"], "without quotes"),
    ],
)
def test_values_of_another_shape_are_refused(annotation, value, part):
    with pytest.raises(Mismatch, match=part):
        convert(annotation, value)


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int, "INT"),
        (float | None, "NUMBER|none"),
        (tuple[str, ...], "TEXT..."),
        (Literal["a", "b"], "a|b"),
        (bool, "true|false"),
        (tuple[Share, ...], "NUMBER..."),
    ],
)
def test_types_have_names_for_help(annotation, name):
    assert type_name(annotation) == name


def test_neither_text_nor_a_model_is_a_list():
    assert item_type(str) is None
    assert item_type(Config) is None
    assert item_type(dict[str, int]) is None
