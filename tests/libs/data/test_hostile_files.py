"""Whatever a data file holds, it is opened and checked, or refused with one of our errors."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_core.errors import DataError, RLHFError
from rlhf_data.checking import Expectations, check_source
from rlhf_data.prompts import CHARACTERS_PER_TOKEN, tokenize_prompts
from rlhf_data.rows import PromptFormat
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code

PIECES = [
    *(b"prompt", b"answer", b",", b'"', b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\xed\xa0\x80"),
    *(b"{", b"}", b"[", b"]", b":", b"1e999", b"NaN", b"null", b'"\\ud800"', b"\\u0000", b" "),
    *(b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"9" * 5000, b"x" * 150_000, b"\xf0\x9f\x99\x82", b"\x1a"),
    *(b'{"prompt": "a"}\n', b'{"prompt": [{"role": "user", "content": 3}]}\n', b"[" * 5000),
]
CONTENTS = st.lists(st.sampled_from(PIECES) | st.binary(min_size=1, max_size=3), min_size=1)
STARTS = {"csv": [b"", b"prompt,answer\n"], "jsonl": [b""], "json": [b"", b"["]}


@pytest.mark.parametrize("suffix", STARTS)
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_bytes_are_rows_or_a_message(tmp_path, suffix, data):
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(b"".join([data.draw(st.sampled_from(STARTS[suffix])), *data.draw(CONTENTS)]))
    expected = Expectations(format=PromptFormat(), label_key="answer", id_key="answer")

    try:
        source = open_source(str(path))
        report = check_source(source, expected)
    except RLHFError:
        return
    assert report.total == len(source)


@pytest.mark.parametrize(
    ("header", "part", "code"),
    [
        (b"prompt,a\0b", "without NUL characters", "data/nul-in-header"),
        (b"prompt,\0", "NUL", "data/nul-in-header"),
        (b"p\xff,b", "UTF-8.*iconv", "data/header-not-utf8"),
    ],
)
def test_a_header_that_no_table_can_have_is_refused(tmp_path, header, part, code):
    (tmp_path / "x.csv").write_bytes(header + b"\n1,2\n")

    with pytest.raises(DataError, match=part, check=has_code(code)):
        open_source(str(tmp_path / "x.csv"))


@pytest.mark.parametrize("chat", [False, True])
def test_a_line_that_is_surely_too_long_is_not_tokenized(write_rows, renderer, monkeypatch, chat):
    """Tokenizing 50 MB takes minutes; that they are no prompt of 64 tokens is known from their length."""
    given_texts = []
    tokenize = type(renderer.texts).encode
    monkeypatch.setattr(
        type(renderer.texts),
        "encode",
        lambda self, texts: given_texts.extend(one.text for one in texts) or tokenize(self, texts),
    )
    most = 64
    long = "x" * (CHARACTERS_PER_TOKEN * most + 1)
    source = open_source(write_rows([{"prompt": long}, {"prompt": "ab"}]))

    prompts = tokenize_prompts(
        source, np.ones(2, dtype=bool), PromptFormat(chat=chat), renderer, max_tokens=most
    )

    assert prompts.rows.tolist() == [1]
    assert max(map(len, given_texts)) < 100
    (bad,) = prompts.bad
    assert bad.kind == "too long"
    assert "characters; expected at most" in bad.reason
