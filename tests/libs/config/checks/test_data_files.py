"""Names of data files: which endings are read, what is packed, and what is a pattern."""

import pytest

from rlhf_config.checks.data_files import files_of, is_packed, is_pattern, suffix_of


@pytest.mark.parametrize(
    ("name", "suffix", "packed"),
    [
        ("a/b.jsonl", ".jsonl", False),
        ("b.JSONL.GZ", ".jsonl", True),
        ("b.x.csv", ".csv", False),
        ("b.gz", "", True),
        ("org/name", "", False),
    ],
)
def test_the_ending_is_that_of_the_content(name, suffix, packed):
    assert (suffix_of(name), is_packed(name)) == (suffix, packed)


def test_a_pattern_has_an_ending_that_is_read_and_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.jsonl", "a.jsonl", "a[1].jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "folder.jsonl").mkdir()

    assert [is_pattern(name) for name in ("*.jsonl", "a[1].jsonl", "what is this?")] == [
        True,
        False,
        False,
    ]
    assert files_of("?.jsonl") == ["a.jsonl", "b.jsonl"]
    assert files_of("folder.*") == []
