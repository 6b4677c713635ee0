import asyncio
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_guard.environments.frames import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    FrameError,
    packed,
    read_frame,
    unpacked,
)

TEXTS = st.text(st.characters(codec=None), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def read(*parts, limit=MAX_FRAME_BYTES):
    async def all_of_it():
        reader = asyncio.StreamReader()
        for part in parts:
            reader.feed_data(part)
        reader.feed_eof()
        messages = []
        while (message := await read_frame(reader, limit)) is not None:
            messages.append(message)
        return messages

    return asyncio.run(all_of_it())


@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=3))
def test_messages_arrive_as_they_were(messages):
    assert read(*(packed(message) for message in messages)) == messages


def test_text_that_is_no_unicode_and_numbers_that_are_not_finite_arrive():
    (message,) = read(packed({"text": "\ud800\0é", "number": math.inf}))

    assert message == {"text": "\ud800\0é", "number": math.inf}


def nested(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [MAX_DEPTH, 500, 100_000])
def test_a_message_that_is_too_deep_is_not_sent_and_not_taken(levels):
    with pytest.raises(FrameError, match=r"levels deep|recursion"):
        packed({"a": nested(levels)})
    with pytest.raises(FrameError, match=r"levels deep|recursion"):
        unpacked(b'{"a":' + b"[" * levels + b"]" * levels + b"}")


def test_brackets_in_a_text_are_not_depth():
    assert read(packed({"a": "[" * 1000, "b": nested(MAX_DEPTH - 1)}))


def test_a_message_that_is_too_long_is_not_sent():
    with pytest.raises(FrameError, match=r"has 67,108,\d+ bytes; expected at most 67,108,864"):
        packed({"a": "x" * MAX_FRAME_BYTES})


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"\0\0", EOFError, "bytes read"),
        (b"\0\0\0\5{}", EOFError, "bytes read"),
        (struct.pack(">I", 11) + b"{}", FrameError, "a frame of 11 bytes; expected at most 10"),
        (b"\0\0\0\2[]", FrameError, "a frame with a list; expected an object"),
        (b"\0\0\0\2{]", FrameError, "a frame that is no message"),
        (b"\0\0\0\2\xff\xff", FrameError, "a frame that is no message"),
        (b'\0\0\0\x09{"a":NaN}', FrameError, "NaN is no JSON"),
        (b"GET / HTTP/1.1\r\n\r\n", FrameError, r"a frame of 1,195,725,856 bytes"),
    ],
)
def test_bytes_that_are_no_frame_are_refused(data, error, text):
    with pytest.raises(error, match=text):
        read(data, limit=10)


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j])
def test_a_value_that_cannot_be_sent_is_named(value):
    with pytest.raises(FrameError, match=f"holds a {type(value).__name__}, which cannot be sent"):
        packed({"a": value})
