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
UNSEEN = [(f"{a}+{b}=", f"{a + b:02d}") for a in range(3, 5) for b in range(2)]


def data_of(sums):
    """Rows of sums for each kind of command."""
    return {
        "rows": [{"prompt": asked, "response": said} for asked, said in sums],
        "pairs": [
            {"prompt": asked, "chosen": said, "rejected": f"{said}0"} for asked, said in sums
        ],
        "judged": [
            {"prompt": asked, "completion": said, "label": at % 2 == 0}
            for at, (asked, said) in enumerate(sums)
        ],
        "solutions": [
            {"prompt": asked, "completions": ["1", said], "labels": [True, at % 2 == 0]}
            for at, (asked, said) in enumerate(sums)
        ],
    }


COMMANDS = {
    "sft": ("sft", "rows"),
    "distill": ("distill", "rows", "--teacher.path", "teacher"),
    "dpo": ("dpo", "pairs"),
    "kto": ("dpo", "judged", "--preference.loss", "kto"),
    "aot": ("dpo", "pairs", "--preference.loss", "aot"),
    "rm": ("rm", "pairs"),
    "prm": ("prm", "solutions"),
}
BATCH = 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    write_tiny_model(tmp_path / "teacher", hidden_size=16, num_layers=1, num_heads=2, seed=3)
    for ending, sums in (("", SUMS), ("_held", UNSEEN)):
        for name, rows in data_of(sums).items():
            path = tmp_path / f"{name}{ending}.jsonl"
            path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name, output, *words, steps=2):
    command, data, *more = COMMANDS[name]
    size = ("--train.batch_size", str(BATCH), "--steps", str(steps), "--actor.adam.lr", "0.01")
    start = [command, "--model", "model", "--data", f"{data}.jsonl", *more, *QUIET, *size]
    assert main([*start, "--output", output, *words]) == 0


def samples(folder, output, step):
    lines = map(json.loads, (folder / output / "samples.jsonl").read_text().splitlines())
    return [line for line in lines if line["step"] == step]


def mean(rows, name):
    return math.fsum(row["rewards"][name] for row in rows) / len(rows)


PAIRS = ("dpo", "aot", "rm")
"""Names of commands on pairs."""
MEANS = {
    "dpo": {"loss/preference": "loss", "preference/margin": "margin"},
    "aot": {"loss/preference": "loss", "preference/margin": "margin"},
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
    assert len(rows) == BATCH * (2 if name in PAIRS else 1)
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


HELD_OUT_MEANS = {
    "sft": {"nll": "nll"},
    "distill": {"nll": "nll"},
    "dpo": {"loss": "loss", "margin": "margin", "accuracy": "right"},
    "aot": {"loss": "loss", "margin": "margin", "accuracy": "right"},
    "kto": {"loss": "loss"},
    "rm": {"loss": "loss", "margin": "margin", "accuracy": "right"},
    "prm": {"loss": "loss", "accuracy": "right"},
}
"""Metric of an evaluation -> number of its rows whose mean it is."""


def held_out(folder, output):
    lines = map(json.loads, (folder / output / "eval_samples.jsonl").read_text().splitlines())
    return [line for line in lines if line["eval"] == "unseen"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_held_out_rows_are_recorded_at_each_evaluation(folder, name):
    held = f"unseen={COMMANDS[name][1]}_held.jsonl"
    evaluated = ("--eval.data", held, "--eval.every", "1")
    run(name, "seen", "--log.samples", str(BATCH), *evaluated)
    run(name, "few", "--log.samples", "1", *evaluated)
    run(name, "unseen", "--log.samples", "0", *evaluated)

    assert not (folder / "unseen/eval_samples.jsonl").read_bytes()
    for other in ("few", "unseen"):
        assert records(folder / "seen", "metrics") == records(folder / other, "metrics")
        assert (folder / "seen/model/model.safetensors").read_bytes() == (
            folder / other / "model/model.safetensors"
        ).read_bytes()
    rows = held_out(folder, "seen")
    of_step = [[row for row in rows if row["step"] == step] for step in range(3)]
    uids = [row["uid"] for row in of_step[0]]
    assert [[row["uid"] for row in each] for each in of_step] == [uids] * 3
    assert len(uids) == len(UNSEEN) * (2 if name in PAIRS else 1)
    assert {uid.split(".")[0] for uid in uids} == {"-1"}
    few = [row["uid"] for row in held_out(folder, "few") if row["step"] == 1]
    assert few == uids[: len(uids) // len(UNSEEN)]
    lines = (folder / "seen/metrics.jsonl").read_text().splitlines()
    evals = [line["eval"] for line in map(json.loads, lines) if "eval" in line]
    for each, metrics in zip(of_step, evals, strict=True):
        for metric, number in HELD_OUT_MEANS[name].items():
            assert mean(each, number) == pytest.approx(metrics[f"eval/{metric}"], abs=1e-5), metric


def test_tokens_of_held_out_rows_have_the_loss_of_each(folder):
    run("sft", "run", "--eval.data", "rows_held.jsonl")

    lines = map(json.loads, (folder / "run/eval_samples.jsonl").read_text().splitlines())
    first, last = (row for row in lines if row["uid"] == "-1.0.0.0")
    for row in (first, last):
        tokens = row["tokens"]
        assert (
            "".join(tokens["texts"][at] for at in tokens["order"])
            == row["prompt"] + row["response"] + "<eos>"
        )
        learned = [at for start, end in tokens["learned"] for at in range(start, end)]
        assert len(learned) == len(tokens["loss"]) == 3
        # Four digits of each.
        assert math.fsum(tokens["loss"]) / 3 == pytest.approx(row["rewards"]["nll"], rel=1e-3)
    assert first["tokens"]["loss"] != last["tokens"]["loss"]


def test_a_run_that_goes_on_has_each_evaluation_once(folder):
    words = ("--eval.data", "pairs_held.jsonl", "--eval.every", "1", "--checkpoint.every", "1")
    run("dpo", "whole", *words)
    run("dpo", "cut", *words, steps=1)
    run("dpo", "cut", *words, "--resume", "auto")

    assert (folder / "cut/eval_samples.jsonl").read_text() == (
        folder / "whole/eval_samples.jsonl"
    ).read_text()


def test_show_prints_rows_with_their_numbers(folder, capfd):
    run("dpo", "pairs", "--log.samples", "1", "--eval.data", "unseen=pairs_held.jsonl")
    run("prm", "solutions", "--log.samples", "1")
    capfd.readouterr()

    assert main(["show", "pairs"]) == 0
    assert main(["show", "solutions"]) == 0

    shown = capfd.readouterr().out
    assert "  chosen  score " in shown
    assert "  rejected  score " in shown
    assert ", margin " in shown
    assert "step 2, score " in shown
    assert "held out at step 2, unseen: 1 pair, mean loss " in shown
    assert main(["show", "pairs", "--eval"]) == 0
    assert "unseen  -1.0.1.0  rejected  score " in capfd.readouterr().out
