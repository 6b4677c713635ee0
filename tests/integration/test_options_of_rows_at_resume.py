"""Options of the commands that train on rows, at resume: refused by name, or obeyed from the next step on.

The learning rate is so small that no weight changes, so a run which had a value from its first step on is at its third
step the run that got it there.
"""

import json
import shutil

import pytest
from tests.advice import without

from rlhf_cli.main import main
from rlhf_cli.runs import training_commands
from rlhf_config import OPTIONS_OF_PARTS
from rlhf_config.sections import fields_of
from rlhf_core.plugins import load
from rlhf_testing.tiny import write_tiny_model
from rlhf_trainer.loop.resume import FREE

from .forked_runs import QUIET
from .options_at_resume import rewrite, with_other

ROWS = [
    {"prompt": f"{n}=", "response": "1" * (1 + n % 3), "chosen": str(n), "rejected": "?"}
    for n in range(8)
]
SOLUTIONS = [
    {"prompt": f"{n}=", "completions": ["1", "2" * (1 + n % 2)], "labels": [True, n % 3 == 0]}
    for n in range(8)
]
COMMANDS = {
    "sft": "rows.jsonl",
    "dpo": "rows.jsonl",
    "rm": "rows.jsonl",
    "prm": "solutions.jsonl",
    "distill": "rows.jsonl --teacher.path teacher",
}
"""Command -> its data, and what it needs beside."""
COMMON = (
    *(
        "--optim",
        "sgd",
        "--actor.sgd.lr",
        "1e-30",
        "--steps",
        "3",
        "--data.max_length",
        "16",
        "--train.batch_size",
        "2",
    ),
    *("--checkpoint.every", "1", "--checkpoint.keep", "9", *QUIET),
)
OBEYED = {
    "train.steps": "--steps 4",
    "train.max_tokens_per_micro_batch": "--train.max_tokens_per_micro_batch 16",
    "train.max_skipped_updates": "--train.max_skipped_updates 5",
    "train.aggregation": "--train.aggregation seq-mean-token-mean",
    "train.loss": "--train.loss dft",
    "train.label_smoothing": "--train.label_smoothing 0.25",
    "train.neftune_alpha": "--train.neftune_alpha 5",
    "actor.lr_schedule": "--actor.lr_schedule cosine",
    "actor.warmup_ratio": "--actor.warmup_ratio 1.0",
    "actor.init_lr_ratio": "--actor.warmup_ratio 1.0 --actor.init_lr_ratio 0.5",
    "actor.min_lr_ratio": "--actor.lr_schedule cosine --actor.min_lr_ratio 0.5",
    "actor.max_norm": "--actor.max_norm 0.125",
    "actor.ema": "--actor.ema 0.5",
    "ref.sync_every": "--ref.sync_every 1",
    "ref.sync_alpha": "--ref.sync_every 1 --ref.sync_alpha 0.5",
}
"""Option -> words with another value."""
OTHERWISE = {
    # Beside a number of steps it would change nothing and is refused.
    "train.epochs",
    # Each has a format of its own for the state of training; tests of the backends go from one to another.
    "backend.name",
    # The other one needs Ray.
    "runtime.name",
    # Of a mixture of experts; a role is built with it anew at each start.
    "actor.router_aux_loss",
}
BOUND = ("seed", "model", "data", "train.batch_size", "actor.optim", "actor.adapter")
BOUND += (*OPTIONS_OF_PARTS, "preference", "ranking", "teacher")
OF_IMITATION = {"train.aggregation"}
OF_SFT = {"train.loss", "train.label_smoothing", "train.neftune_alpha"}
OF_PREFERENCES = {"ref.sync_every", "ref.sync_alpha"}
LACKING = {
    "sft": OF_PREFERENCES,
    "dpo": OF_IMITATION | OF_SFT,
    "rm": OF_IMITATION | OF_SFT | OF_PREFERENCES,
    "prm": OF_IMITATION | OF_SFT | OF_PREFERENCES,
    "distill": OF_SFT | OF_PREFERENCES,
}
"""Command -> options of others that it does not have."""
UNSEEN = {
    "train.steps",
    "train.max_tokens_per_micro_batch",
    "train.max_skipped_updates",
    "actor.ema",
    "actor.max_norm",
    "ref.sync_every",
    "ref.sync_alpha",
}
"""Options that change no number of the third step: the norm of the gradient is that before it is cut, and weights that
do not change are followed by no reference."""
EVERY_CASE = [(c, path) for c in COMMANDS for path in OBEYED if path not in LACKING[c]]
CASES = [
    pytest.param(*case, marks=() if case[0] == "sft" or number % 6 == 0 else pytest.mark.matrix)
    for number, case in enumerate(EVERY_CASE)
]
"""CI has every option of one command, and some of each other, which go on by the same loop."""


def options(command):
    tree = training_commands(load(""))[command].options
    return {path for path, _ in fields_of(tree.model) if not path.startswith(FREE)}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a run of each command, with checkpoints of its three steps."""
    folder = tmp_path_factory.mktemp("rows")
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    shutil.copytree(folder / "model", folder / "teacher")
    for name, rows in (("rows", ROWS), ("solutions", SOLUTIONS)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            assert run(command, command) == 0
    return folder


def run(command, output, *words):
    data = ("--model", "model", "--data", *COMMANDS[command].split(), "--output", output)
    common = COMMON
    for flag in words[::2]:
        common = without(common, flag)
    return main([command, *data, *common, *words])


def third(folder, output):
    """The numbers of the third step."""
    lines = map(json.loads, (folder / output / "metrics.jsonl").read_text().splitlines())
    (found,) = [line["metrics"] for line in lines if line["step"] == 3 and "metrics" in line]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_bound_or_obeyed(command):
    left = {path for path in options(command) if not path.startswith(BOUND)}

    assert left == (OBEYED.keys() | OTHERWISE) - LACKING[command]


def test_every_command_that_trains_on_rows_is_here():
    assert training_commands(load("")).keys() == COMMANDS.keys() | {"train"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bound_option_is_refused_by_name(workspace, command, monkeypatch, capfd):
    """The value of the checkpoint is another, for one option after the other."""
    monkeypatch.chdir(workspace)
    bound = sorted(path for path in options(command) if path.startswith(BOUND))
    folder = workspace / f"bound-{command}" / "step-00000002"
    shutil.copytree(workspace / command / "checkpoints/step-00000002", folder)

    for path in bound:
        rewrite(
            folder,
            lambda state, path=path: {
                **state,
                "config": with_other(whole_config(workspace, command), path),
            },
        )
        assert run(command, f"out-{command}", "--resume", str(folder)) == 2
        assert f"--{path} is " in capfd.readouterr().err, path


def whole_config(workspace, command):
    state = workspace / command / "checkpoints/step-00000002/state.json"
    return json.loads(state.read_text())["config"]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "path"), CASES)
def test_the_next_step_obeys_an_option(workspace, command, path, monkeypatch):
    monkeypatch.chdir(workspace)
    words = OBEYED[path].split()
    assert run(command, f"whole-{command}-{path}", *words) == 0

    saved = f"{command}/checkpoints/step-00000002"
    assert run(command, f"again-{command}-{path}", *words, "--resume", saved) == 0

    expected = third(workspace, f"whole-{command}-{path}")
    assert third(workspace, f"again-{command}-{path}") == expected
    assert (expected != third(workspace, command)) == (path not in UNSEEN)
