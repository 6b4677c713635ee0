"""Records after a kill: complete lines of finished steps stay, everything else goes."""

from rlhf_core.loop.records import RecordFile, cut_after


def test_records_of_later_steps_and_cut_lines_are_removed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records = RecordFile(path)
    for step in (1, 2, 3):
        records.write({"step": step})
    records.close()
    with path.open("a") as file:
        file.write('{"step": 2, "eva')

    cut_after(path, 2)

    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_file_that_does_not_exist_is_left_so(tmp_path):
    cut_after(tmp_path / "none.jsonl", 3)

    assert not list(tmp_path.iterdir())
