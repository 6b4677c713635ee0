"""Lines of results: cut behind whole ones."""

from rlhf_plugin_inference.worklist.record_lines import cut_lines


def test_lines_behind_a_number_of_them_are_cut(tmp_path):
    path = tmp_path / "seconds.jsonl"
    path.write_text("a\nb\nc\nhal")

    cut_lines(path, 5)
    assert path.read_text() == "a\nb\nc\n"
    cut_lines(path, 1)
    assert path.read_text() == "a\n"
    cut_lines(tmp_path / "none", 1)


def test_half_a_line_is_cut_off(tmp_path):
    path = tmp_path / "completions.jsonl"
    for half in ("", "{", '{"index": 2'):
        path.write_text(f'{{"index": 0}}\n{{"index": 1}}\n{half}')
        cut_lines(path)
        assert path.read_text() == '{"index": 0}\n{"index": 1}\n'
    cut_lines(tmp_path / "none")
