"""Rows that commands on examples trained on, as their runs record them: with the run's numbers, which stay the same."""

import json
import math

import pyarrow.parquet as parquet
import pytest

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import QUIET, records

pytestmark = pytest.mark.slow

SUMS = [(f"{a}+{b}=", f"{a + b:02d}") for a in range(3) for b in range(3)]
DATA = {
    "rows": [{"prompt": asked, "response": said} for asked, said in SUMS],
    "pairs": [{"prompt": asked, "chosen": said, "rejected": f"{said}0"} for asked, said in SUMS],
    "judged": [
        {"prompt": asked, "completion": said, "label": at % 2 == 0}
        for at, (asked, said) in enumerate(SUMS)
    ],
    "solutions": [
        {"prompt": asked, "completions": ["1", said], "labels": [True, at % 2 == 0]}
        for at, (asked, said) in enumerate(SUMS)
    ],
}
COMMANDS = {
    "sft": ("sft", "rows"),
    "distill": ("distill", "rows", "--teacher.path", "teacher"),
    "dpo": ("dpo", "pairs"),
    "kto": ("dpo", "judged", "--preference.loss", "kto"),
    "rm": ("rm", "pairs"),
    "prm": ("prm", "solutions"),
}
BATCH = 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    write_tiny_model(tmp_path / "teacher", hidden_size=16, num_layers=1, num_heads=2, seed=3)
    for name, rows in DATA.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name, output, *words):
    command, data, *more = COMMANDS[name]
    size = ("--train.batch_size", str(BATCH), "--steps", "2", "--actor.adam.lr", "0.01")
    start = [command, "--model", "model", "--data", f"{data}.jsonl", *more, *QUIET, *size]
    assert main([*start, "--output", output, *words]) == 0


def samples(folder, output, step):
    lines = map(json.loads, (folder / output / "samples.jsonl").read_text().splitlines())
    return [line for line in lines if line["step"] == step]


def mean(rows, name):
    return math.fsum(row["rewards"][name] for row in rows) / len(rows)


MEANS = {
    "dpo": {"loss/preference": "loss", "preference/margin": "margin"},
    "kto": {"loss/preference": "loss"},
    "rm": {"loss/ranking": "loss", "ranking/margin": "margin", "ranking/accuracy": "right"},
    "prm": {"loss/steps": "loss", "steps/accuracy": "right"},
    "sft": {"sft/nll": "nll"},
    "distill": {},
}
"""Metric of a step -> number of its rows whose mean it is: all rows are recorded, and have as many learned tokens."""


@pytest.mark.parametrize("name", COMMANDS)
def test_recorded_rows_have_the_numbers_of_the_step_which_stay_the_same(folder, name):
    run(name, "seen", "--log.samples", str(BATCH), "--observers.use", "token_files")
    run(name, "unseen", "--log.samples", "0")

    assert records(folder / "seen", "metrics") == records(folder / "unseen", "metrics")
    assert (folder / "seen/model/model.safetensors").read_bytes() == (
        folder / "unseen/model/model.safetensors"
    ).read_bytes()
    assert not (folder / "unseen/samples.jsonl").read_bytes()
    rows, metrics = samples(folder, "seen", 2), records(folder / "seen", "metrics")[1]
    assert len(rows) == BATCH * (2 if name in ("dpo", "rm") else 1)
    for metric, number in MEANS[name].items():
        # Sums of a few float32 numbers of order 1, in other orders.
        assert mean(rows, number) == pytest.approx(metrics[metric], abs=1e-5), metric
    tokens = parquet.read_table(folder / "seen/tokens/step-00000002.parquet").to_pydict()
    assert set(tokens["uid"]) == {row["uid"] for row in rows}
    column = "value" if name in ("rm", "prm") else "trainer_logprob"
    if name in ("sft", "distill"):
        losses = [loss for loss in tokens["loss"] if loss is not None]
        expected = metrics["loss/policy"]
        assert math.fsum(losses) / len(losses) == pytest.approx(expected, abs=1e-5)
    known = [value is not None for value in tokens[column]]
    assert known == tokens["action"]


def test_show_prints_rows_with_their_numbers(folder, capfd):
    run("dpo", "pairs", "--log.samples", "1")
    run("prm", "solutions", "--log.samples", "1")
    capfd.readouterr()

    assert main(["show", "pairs"]) == 0
    assert main(["show", "solutions"]) == 0

    shown = capfd.readouterr().out
    assert "  chosen  score " in shown
    assert "  rejected  score " in shown
    assert ", margin " in shown
    assert "step 2, score " in shown
