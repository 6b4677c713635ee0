"""Messages of one line and of several."""

from __future__ import annotations

import pytest

from rlhf_plugin_inference.chat.terminal import read_message


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hello"], "hello"),
        (["  hello  "], "hello"),
        ([""], ""),
        ([], None),
        (['"""', "a", "", " b", '"""'], "a\n\n b"),
        (['"""', "a"], "a"),
        (['"""', '"""'], ""),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (["a\\"], "a"),
    ],
)
def test_a_message_is_read_from_its_lines(lines, message):
    coming = iter(lines)

    def read():
        return next(coming, None)

    assert read_message(read, read) == message
    assert next(coming, None) is None
