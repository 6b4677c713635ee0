"""Records after a kill: what a checkpoint vouches for stays, everything else goes."""

from contextlib import closing

from rlhf_trainer.durable.records import RecordFile, RunningDigest


def test_what_comes_after_the_known_beginning_is_removed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "eva')
    begun = RunningDigest()
    begun.add_file(path, up_to=24)

    with closing(RecordFile(path, begun)) as records:
        records.write({"step": 3, "again": True})

    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "again": true}\n'


def test_without_a_beginning_the_file_begins_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')

    with closing(RecordFile(path)) as records:
        records.write({"step": 1, "again": True})

    assert path.read_text() == '{"step": 1, "again": true}\n'
