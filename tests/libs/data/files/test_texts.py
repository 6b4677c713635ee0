"""Plain text files: a file is a document; nothing of it is lost where a long one is cut."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_core.errors import DataError
from rlhf_data.files.texts import TextFile
from rlhf_data.source import Unreadable
from rlhf_data.sources import open_source
from rlhf_testing.errors import has_code


def test_a_file_is_one_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\n\nTwo.\n")

    source = open_source(str(tmp_path / "a.txt"))

    assert list(source.scan()) == [{"text": "One.\n\nTwo.\n"}]
    assert source.where(0).endswith("a.txt:1")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(alphabet="aé ", max_size=9), min_size=1, max_size=9), st.integers(1, 20))
def test_a_long_file_is_cut_between_lines(tmp_path, lines, row_bytes):
    text = "\n".join(lines) + "\n"
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")

    source = TextFile(path, "a", row_bytes=row_bytes)

    texts = [source.row(index)["text"] for index in range(len(source))]
    assert "".join(texts) == text
    assert all(len(one.encode()) <= row_bytes or one.count("\n") == 1 for one in texts)
    for index, one in enumerate(texts):
        start = int(source.where(index).rpartition(":")[2]) - 1
        assert one.startswith(text.splitlines(keepends=True)[start])


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab\xff")

    source = open_source(str(tmp_path / "a.txt"))

    assert isinstance(next(iter(source.scan())), Unreadable)
    with pytest.raises(
        DataError,
        match=r"a\.txt:1: expected UTF-8 text .* at byte 3",
        check=has_code("data/unreadable"),
    ):
        source.row(0)
