"""``rlhf sft``, ``dpo``, ``rm`` and ``prm`` on Ray: the updates of one process of torch, also after a kill."""

import json
import os
import re
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from .conftest import COMPONENTS

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("ray")


def rows_of(first, second):
    """Rows of the sums of two ranges, for all commands."""
    return [
        {
            "prompt": f"{a}+{b}=",
            "response": right,
            "chosen": right,
            "rejected": wrong,
            "by": (a - b) / 4,
            "completions": [right, wrong, right][b % 2 :],
            "labels": [1.0, 0.25, 0.75][b % 2 :],
        }
        for a in first
        for b in second
        for right, wrong in [(f"{a + b:02d}" * (1 + b), f"{a + b + 1}?" * (1 + a))]
    ]


ROWS = rows_of(range(4), range(4))
"""Sums, whose answers have 2 to 8 characters."""
SMALL = [
    *("--model", "model", "--data", "sums.jsonl", "--eval.data", "held_out.jsonl"),
    *("--data.max_length", "31", "--train.max_tokens_per_micro_batch", "40"),
    *("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"),
]
BY_SIX = ["--train.batch_size", "6"]
"""Three updates an epoch, of several micro-batches each."""
GRADIENT = ["--optim", "sgd", "--actor.sgd.lr", "0.5", "--actor.max_norm", "0.4"]
"""Weights move by the clipped gradient, so their distance is its error."""
OPTIONS = {"rm": ["--data.margin_key", "by", "--ranking.center_coef", "0.05"]}
"""Further options of a command."""
ROLES = {"sft": "policy", "dpo": "policy", "rm": "reward_model", "prm": "reward_model"}
"""The role that a command trains."""


def ranks_of(command):
    """Options of two ranks of the role that a command trains."""
    return [f"--runtime.ray.ranks.{ROLES[command]}", "2"]


def two_ranks(command):
    """Options of two ranks of DeepSpeed."""
    return ["--runtime", "ray", "--backend", "deepspeed", *ranks_of(command)]


@pytest.fixture
def sums(folder):
    """The folder of a small run, with ``sums.jsonl`` and ``held_out.jsonl``."""
    for name, rows in (("sums", ROWS), ("held_out", rows_of(range(4, 6), range(4)))):
        text = "\n".join(map(json.dumps, rows)) + "\n"
        (folder / f"{name}.jsonl").write_text(text)
    return folder


@pytest.fixture
def learn(sums, monkeypatch, cluster):
    """Runs a command in this process; returns the run folder."""
    from rlhf_cli.main import main

    monkeypatch.chdir(sums)

    def run(command, output, *words, code=0):
        own = OPTIONS.get(command, [])
        assert main([command, *SMALL, *own, "--output", output, *words]) == code
        return sums / output

    return run


def lines_of(run, *left_out):
    """The run's records, without times and without the named metrics."""
    found = []
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        metrics = {k: v for k, v in line.get("metrics", {}).items() if k not in left_out}
        found.append({"step": line["step"], "metrics": metrics, "eval": line.get("eval")})
    return found


def rows_recorded(run):
    """The numbers of each row that the run recorded, trained on or held out, by step and name."""
    return {
        (name, line["step"], line["uid"]): {"score": line["reward"], **line["rewards"]}
        for name in ("samples", "eval_samples")
        for line in map(json.loads, (run / f"{name}.jsonl").read_text().splitlines())
    }


def weights_of(run, name="model"):
    (written,) = json.loads((run / name / "config.json").read_text())["architectures"]
    is_scorer = written.endswith("ForSequenceClassification")
    kind = AutoModelForSequenceClassification if is_scorer else AutoModelForCausalLM
    model, info = kind.from_pretrained(run / name, output_loading_info=True)
    assert not info["missing_keys"]
    return dict(model.named_parameters())


def entries_of(run):
    """What ``config.json`` says of a reward model's scores and steps."""
    config = json.loads((run / "model" / "config.json").read_text())
    return {name: config.get(name) for name in ("mean", "std", "step_separator")}


def assert_same_run(run, alone):
    """Two ranks cut other micro-batches than one."""
    wanted, found = (lines_of(each, "train/micro_batches") for each in (alone, run))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one["step"] == other["step"]
        for part in ("metrics", "eval"):
            assert (one[part] or {}) == pytest.approx(other[part] or {}, abs=1e-5, rel=1e-5)
    recorded, expected = rows_recorded(run), rows_recorded(alone)
    assert {name for name, _, _ in expected} == {"samples", "eval_samples"}
    assert recorded.keys() == expected.keys()
    for row, numbers in expected.items():
        assert recorded[row] == pytest.approx(numbers, abs=1e-5, rel=1e-5), row
    torch.testing.assert_close(weights_of(run), weights_of(alone), atol=1e-6, rtol=0.0)
    assert entries_of(run) == pytest.approx(entries_of(alone), abs=1e-5)


STAGES = [
    ("sft", "3"),
    ("dpo", "2"),
    ("dpo", "3"),
    ("rm", "3"),
    ("prm", "3"),
    *(
        pytest.param(command, stage, marks=pytest.mark.matrix)
        for command, stages in (("sft", "012"), ("dpo", "01"), ("rm", "012"), ("prm", "012"))
        for stage in stages
    ),
]


@pytest.mark.parametrize(("command", "stage"), STAGES)
def test_two_ranks_of_zero_do_the_updates_of_one_process(learn, command, stage):
    pytest.importorskip("deepspeed")
    words = [*GRADIENT, *BY_SIX, "--steps", "2", "--actor.ema", "0.5"]
    alone = learn(command, "alone", *words)

    zero = ["--backend.deepspeed.zero_stage", stage]
    ranks = learn(command, "ranks", *words, *two_ranks(command), *zero)

    assert_same_run(ranks, alone)
    averages = weights_of(ranks, "model_ema"), weights_of(alone, "model_ema")
    torch.testing.assert_close(*averages, atol=1e-6, rtol=0.0)
    start = dict(AutoModelForCausalLM.from_pretrained("model").named_parameters())
    moved = [
        (weight - start[name]).abs().max()
        for name, weight in weights_of(alone).items()
        if name in start
    ]
    assert max(moved) > 1e-2


@pytest.mark.parametrize(
    "command",
    ["sft", "rm", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("dpo", "prm"))],
)
def test_two_ranks_of_fsdp_do_the_updates_of_one_process(learn, command):
    words = [*GRADIENT, *BY_SIX, "--steps", "2", "--actor.ema", "0.5"]
    alone = learn(command, "alone", *words)

    fsdp = ["--runtime", "ray", "--backend", "fsdp", *ranks_of(command)]
    ranks = learn(command, "ranks", *words, *fsdp)

    assert_same_run(ranks, alone)
    averages = weights_of(ranks, "model_ema"), weights_of(alone, "model_ema")
    torch.testing.assert_close(*averages, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(
    "command",
    ["sft", "dpo", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("rm", "prm"))],
)
def test_one_rank_of_torch_has_the_bits_of_one_process(learn, command):
    words = [*BY_SIX, "--actor.adam.lr", "0.01"]
    alone = learn(command, "alone", *words, "--runtime.local.threads", "1")

    rank = learn(command, "rank", *words, "--runtime", "ray")

    assert lines_of(rank) == lines_of(alone)
    assert rows_recorded(rank) == rows_recorded(alone)
    torch.testing.assert_close(weights_of(rank), weights_of(alone), atol=0, rtol=0)


@pytest.mark.parametrize("command", ["dpo", pytest.param("rm", marks=pytest.mark.matrix)])
def test_ranks_without_a_pair_take_part(learn, command):
    pytest.importorskip("deepspeed")
    words = [*GRADIENT, "--train.batch_size", "1", "--steps", "1"]
    alone = learn(command, "alone", *words)

    ranks = learn(command, "ranks", *words, *two_ranks(command))

    assert_same_run(ranks, alone)


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_an_error_of_a_rank_names_it_and_the_option(learn, capfd, command):
    pytest.importorskip("deepspeed")
    wide = ["--backend.deepspeed.sequence_parallel", "4"]
    learn(command, "run", *two_ranks(command), *wide, code=2)

    said = capfd.readouterr().err
    assert re.search(r"policy rank \d \(pid \d+ on \S+\)", said)
    assert "sequence_parallel 4" in said


LONG = [*SMALL, *BY_SIX, "--train.epochs", "2", "--checkpoint.every", "2"]
LONG += ["--actor.adam.lr", "0.01", "--actor.ema", "0.9", "--eval.every", "2", "--output", "run"]
DEEPSPEED = ["--backend", "deepspeed"]


def long(command):
    """Options of a run that is killed."""
    return [*LONG, *OPTIONS.get(command, []), *ranks_of(command)]


def assert_same_bits(run, whole):
    assert lines_of(run) == whole["lines"]
    assert entries_of(run) == whole["entries"]
    for name in ("model", "model_ema"):
        torch.testing.assert_close(weights_of(run, name), whole[name], atol=0, rtol=0)


@pytest.fixture
def undisturbed(launch, sums):
    """Records and weights of a run of a command that nothing stops; its folder is free afterwards."""

    def run(command):
        whole = launch(command, *long(command), *DEEPSPEED)
        assert whole.end() == 0, whole.output
        kept = sums / "whole"
        (sums / "run").rename(kept)
        models = {name: weights_of(kept, name) for name in ("model", "model_ema")}
        return {"lines": lines_of(kept), "entries": entries_of(kept), **models}

    return run


@pytest.mark.parametrize(
    "command",
    ["dpo", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("sft", "rm", "prm"))],
)
def test_a_rank_that_is_killed_ends_the_run_which_resumes_to_the_bit(
    launch, sums, undisturbed, command, tmp_path_factory
):
    pytest.importorskip("deepspeed")
    whole, deaths = undisturbed(command), tmp_path_factory.mktemp("deaths")
    (deaths / "plan").write_text("rank rank.train 4")
    environment = {
        "MORTAL_FOLDER": str(deaths),
        "RLHF_PLUGINS": "mortal_components",
        "PYTHONPATH": os.pathsep.join([str(COMPONENTS), os.environ.get("PYTHONPATH", "")]),
    }

    words = long(command)
    killed = launch(command, *words, "--backend", "mortal_deepspeed", **environment)

    assert killed.end() == 1, killed.output
    death = json.loads((deaths / "killed-0").read_text())
    told = re.search(rf"{ROLES[command]} rank \d \(pid {death['pid']} on .*", killed.output)
    assert told is not None, killed.output
    assert "--resume auto" in told[0]

    resumed = launch(command, *words, *DEEPSPEED, "--resume", "auto")

    assert resumed.end() == 0, resumed.output
    assert_same_bits(sums / "run", whole)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("sft", "train:4"),
        pytest.param("dpo", "train:4", marks=pytest.mark.matrix),
        pytest.param("dpo", "save:4", marks=pytest.mark.matrix),
        pytest.param("sft", "export:6", marks=pytest.mark.matrix),
        pytest.param("rm", "train:4", marks=pytest.mark.matrix),
        pytest.param("rm", "export:6", marks=pytest.mark.matrix),
        pytest.param("prm", "save:4", marks=pytest.mark.matrix),
    ],
)
def test_a_run_whose_driver_is_killed_goes_on_to_the_bit(launch, sums, undisturbed, command, fault):
    pytest.importorskip("deepspeed")
    whole, words = undisturbed(command), [*long(command), *DEEPSPEED]

    killed = launch(command, *words, RLHF_FAULT=fault)
    assert killed.end() == -signal.SIGKILL, killed.output
    resumed = launch(command, *words, "--resume", "auto")

    assert resumed.end() == 0, resumed.output
    assert_same_bits(sums / "run", whole)
