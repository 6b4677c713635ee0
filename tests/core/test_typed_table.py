"""Tables of options with any names: typed on a command line they have the types that a file would give them."""

import pytest

from rlhf_bridge_gymnasium.config import GymnasiumConfig
from rlhf_core.typed_table import typed
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_vllm.config import VllmEngineConfig


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-3", -3),
        ("0.5", 0.5),
        ("1e9", 1e9),
        ("2.5E-3", 2.5e-3),
        ("true", True),
        ("false", False),
        ("mp", "mp"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("null", "null"),
        ("True", "True"),
        ("", ""),
    ],
)
def test_numbers_and_truths_are_what_they_say_and_other_words_stay(text, value):
    (found,) = typed({"name": text}).values()

    assert found == value
    assert type(found) is type(value)


def test_tables_in_the_table_are_read_so_too_and_json_is_a_table():
    assert typed({"a": {"b": "2", "c": ["3"]}}) == {"a": {"b": 2, "c": ["3"]}}
    assert typed('{"a": {"b": "x"}}') == {"a": {"b": "x"}}
    assert typed("no table") == "no table"


def test_components_with_such_tables_take_words_of_a_command_line():
    assert VllmEngineConfig(args={"tensor_parallel_size": "2"}).args == {"tensor_parallel_size": 2}
    assert VllmEngineConfig(args={"enable_eplb": "false"}).args == {"enable_eplb": False}
    nested = {"zero_optimization": {"stage3_prefetch_bucket_size": "1000000"}}
    found = DeepSpeedConfig(args=nested).args["zero_optimization"]
    assert found == {"stage3_prefetch_bucket_size": 1_000_000}
    lake = GymnasiumConfig(id="FrozenLake-v1", kwargs={"is_slippery": "false"})
    assert lake.kwargs == {"is_slippery": False}
