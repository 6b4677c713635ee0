"""Tokens that a run records beside its samples: their columns, and that recording changes nothing of the run."""

import json
import re
from pathlib import Path

import pyarrow.parquet as parquet


def test_tokens_are_recorded_with_what_the_step_computed_and_the_run_stays_as_it_is(train):
    flags = ["--reward", "my_reward.py:score", "--log.samples", "99"]
    flags += ["--algo.loss.old_logprobs", "recompute"]
    plain = train("plain", *flags)
    watched = train("watched", *flags, "--observers.use", "token_files")

    assert [line.get("metrics") for line in watched] == [line.get("metrics") for line in plain]
    samples = Path("watched/samples.jsonl").read_text()
    assert samples == Path("plain/samples.jsonl").read_text()
    rows = parquet.read_table("watched/tokens/step-00000002.parquet").to_pylist()
    recorded = [sample for sample in map(json.loads, samples.splitlines()) if sample["step"] == 2]
    assert {row["uid"] for row in rows} == {sample["uid"] for sample in recorded}
    for row in rows:
        assert (row["rollout_logprob"] is None) is not row["action"]
        if row["action"]:
            assert abs(row["rollout_logprob"] - row["trainer_logprob"]) < 1e-4
            assert row["version"] == 1
    for sample in recorded:
        text = "".join(row["text"] for row in rows if row["uid"] == sample["uid"])
        assert re.sub(r"<\w+>", "", text) == sample["prompt"] + sample["response"]
    assert not Path("plain/tokens").exists()
