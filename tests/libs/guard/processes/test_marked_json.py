import datetime
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_guard.processes.marked_json import decode, encode

TEXTS = st.text(st.characters(codec=None), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=8)
    | st.datetimes()
    | st.dates()
    | st.times(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("\0rlhf"), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS | st.just("\0rlhf"), VALUES, max_size=3))
def test_values_arrive_as_they_were(message):
    assert decode(encode(message)) == message


def test_numbers_that_are_not_finite_arrive_in_json_that_any_reader_takes():
    sent = encode({"a": [math.nan, math.inf], "b": -math.inf, "c": np.array([math.nan]), "d": 0.5})

    json.loads(sent, parse_constant=pytest.fail)
    arrived = decode(sent)
    assert math.isnan(arrived["a"][0])
    assert math.isnan(arrived["c"][0])
    assert (arrived["a"][1], arrived["b"], arrived["d"]) == (math.inf, -math.inf, 0.5)


@pytest.mark.parametrize("text", [b'{"a": NaN}', b'{"a": Infinity}', b"", b"\xff", b'{"a"'])
def test_what_is_no_strict_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_the_type_of_a_value_that_cannot_be_sent_is_named():
    with pytest.raises(TypeError, match=r"^object$"):
        encode({"a": [object()]})


def test_a_value_that_holds_itself_ends_in_an_error():
    circle = []
    circle.append(circle)

    with pytest.raises((ValueError, RecursionError)):
        encode({"a": circle})


def test_a_moment_keeps_its_time_zone():
    moment = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)

    assert decode(encode({"at": moment})) == {"at": moment}
