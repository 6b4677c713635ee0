"""Schemas of functions, as a policy reads them."""

import asyncio
import enum
from typing import Literal, Optional

import pytest
from pydantic import BaseModel

from rlhf_core import PluginError
from rlhf_core.contracts import ToolCall
from rlhf_testing.errors import has_code
from rlhf_tools import Toolbox, function_tool


class Place(BaseModel):
    city: str
    zip: int = 0


class Unit(enum.Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


def forecast(
    place: Place,
    days: int,
    unit: Literal["C", "F"] = "C",
    note: Optional[str] = None,  # noqa: UP045
    hours: list[int] | None = None,
) -> str:
    """Return the weather of a place.

    It never rains.

    Args:
        place: where
        days: how many days,
            counted from today
        unit (str): degrees
    """
    return f"{place.city} {place.zip} {days} {unit} {note} {hours}"


def parameters(function):
    return function_tool(function).schema["function"]["parameters"]


def call(function, arguments):
    tools = Toolbox([function])
    (tool,) = tools
    return asyncio.run(tools.call(ToolCall(name=tool.name, arguments=arguments), timeout_s=60))


def test_a_schema_has_types_defaults_choices_and_descriptions():
    schema = function_tool(forecast).schema

    assert schema["type"] == "function"
    assert schema["function"]["name"] == "forecast"
    assert schema["function"]["description"] == "Return the weather of a place.\nIt never rains."
    given = schema["function"]["parameters"]
    assert given["required"] == ["place", "days"]
    assert given["properties"] == {
        "place": {"$ref": "#/$defs/Place", "description": "where"},
        "days": {"type": "integer", "description": "how many days, counted from today"},
        "unit": {
            "type": "string",
            "enum": ["C", "F"],
            "default": "C",
            "description": "degrees",
        },
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "hours": {
            "anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
            "default": None,
        },
    }
    assert given["$defs"]["Place"]["properties"]["zip"] == {"type": "integer", "default": 0}


def test_simple_functions_have_the_schema_that_transformers_gives_them():
    """An independent reader of signatures and docstrings, which many recipes use."""
    from transformers.utils import get_json_schema

    def multiply(a: float, b: int, exact: bool, names: list[str]) -> float:
        """Multiply two numbers.

        Args:
            a: The first number
            b: The second number
            exact: Whether to round
            names: What to call them
        """
        return a * b

    theirs = get_json_schema(multiply)
    del theirs["function"]["return"]  # which a policy is not told
    assert function_tool(multiply).schema == theirs


def test_arguments_reach_the_function_converted():
    text = call(
        forecast, '{"place": {"city": "Ulm", "zip": "89073"}, "days": 2, "hours": [1]}'
    ).text

    assert text == "Ulm 89073 2 C None [1]"


def test_an_enum_is_a_choice_and_arrives_as_the_enum():
    def convert(unit: Unit) -> str:
        """Convert."""
        return repr(unit)

    assert parameters(convert)["$defs"]["Unit"]["enum"] == ["metric", "imperial"]
    assert call(convert, '{"unit": "metric"}').text == "<Unit.METRIC: 'metric'>"


def test_names_that_pydantic_uses_itself_are_ordinary_parameters():
    def copy(model_config: int, json: int, schema: int) -> int:
        """Add up."""
        return model_config + json + schema

    assert list(parameters(copy)["properties"]) == ["model_config", "json", "schema"]
    assert call(copy, '{"model_config": 1, "json": 2, "schema": 3}').text == "6"


def test_a_parameter_called_title_stays_in_the_schema():
    def book(title: str) -> str:
        """Find a book."""
        return title

    assert parameters(book)["properties"] == {"title": {"type": "string"}}


def test_a_method_is_a_tool_of_its_object():
    class Counter:
        def __init__(self):
            self.n = 0

        def add(self, by: int) -> int:
            """Count."""
            self.n += by
            return self.n

    counter = Counter()
    tools = Toolbox([counter.add])

    for _ in range(2):
        result = asyncio.run(tools.call(ToolCall(name="add", arguments='{"by": 2}'), timeout_s=60))
    assert (result.text, counter.n) == ("4", 4)
    assert list(parameters(counter.add)["properties"]) == ["by"]


def test_a_function_without_parameters_takes_an_empty_object():
    def now() -> str:
        """Return the time."""
        return "noon"

    assert parameters(now) == {"type": "object", "properties": {}}
    assert call(now, "").text == call(now, "{}").text == "noon"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"days": 1}', "place: Field required"),
        ('{"place": {"city": "U"}, "days": "many"}', "days: Input should be a valid integer"),
        ('{"place": {"city": "U"}, "days": 1, "unit": "K"}', "unit: Input should be 'C' or 'F'"),
        ('{"place": {"city": "U"}, "days": 1, "wind": 3}', "wind: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_told_by_name(arguments, said):
    result = call(forecast, arguments)

    assert result.failure == "invalid_arguments"
    assert said in result.text
    assert "http" not in result.text


def nothing(x):
    """Do it."""


def many(*args: int):
    """Do it."""


def undocumented(x: int):
    pass


def stranger(x: int):
    """Do it.

    Args:
        y: not there
    """


def callback(f: type):
    """Do it."""


class Opaque:
    pass


def opaque(x: Opaque):
    """Do it."""


def unknown(x: "NoSuchType"):  # noqa: F821
    """Do it."""


def stream():
    """Do it."""
    yield 1


@pytest.mark.parametrize(
    ("function", "said", "code"),
    [
        (nothing, "'x' has no type", "tool/no-type"),
        (many, r"\*args: int has no name", "tool/parameter-name"),
        (undocumented, "no description", "tool/no-description"),
        (stranger, "describes y, which the function does not take", "tool/unknown-parameter"),
        (callback, "cannot be described in JSON", "tool/not-json"),
        (opaque, "type cannot come from JSON", "tool/type-not-json"),
        (unknown, "NoSuchType", "tool/unreadable-annotations"),
        (stream, "generator", "tool/generator"),
        (lambda x: x, "expected a function with a name", "tool/not-a-function"),
        (Opaque(), "expected a function with a name", "tool/not-a-function"),
    ],
)
def test_what_cannot_be_described_is_refused_with_the_reason(function, said, code):
    with pytest.raises(PluginError, match=said, check=has_code(code)):
        function_tool(function)


def test_a_name_that_templates_do_not_take_is_refused():
    with pytest.raises(PluginError, check=has_code("tool/malformed-name")):
        function_tool(forecast, name="weather forecast")


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(PluginError, match="'forecast'", check=has_code("tool/repeated-name")):
        Toolbox([forecast, forecast])
