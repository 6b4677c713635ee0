"""Small runs of ``rlhf train`` that are replayed, and their weights."""

import json
from pathlib import Path

from rlhf_cli.main import main as rlhf
from rlhf_core.contracts import RunResult
from rlhf_plugin_lab.replay.command import main as replay
from rlhf_testing.tiny import write_tiny_model

STEPS = 5
QUIET = [
    "--log.progress",
    "off",
    "--log.tensorboard",
    "false",
    "--log.curve",
    "false",
    "--log.summary",
    "false",
]
REWARD = """
def score(response, row):
    return sum(character == "1" for character in response) / 8 - 0.1 * len(response) / 8


def length(response, row):
    return float(len(response))
"""


def write_task(folder: Path) -> None:
    """Write model, rows and rewards into a folder."""
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(8)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)


def train(folder: Path, *options: str, name: str = "run") -> Path:
    """Train in ``folder``, with a checkpoint of every step, and return the run folder."""
    words = [
        "train", "--model", str(folder / "model"), "--data", str(folder / "rows.jsonl"), "--output", str(folder / name),
        "--reward", f"{folder / 'rewards.py'}:score", "--steps", str(STEPS), "--rollout.batch_size", "4",
        "--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "6", "--checkpoint.every", "1",
        "--checkpoint.keep", "10", "--actor.adam.lr", "0.01", "--checkpoint.export", "false", *QUIET, *options,
    ]  # fmt: skip
    run_command(words)
    return folder / name


def go_on(run: Path, step: int, *options: str, name: str) -> Path:
    """Go on from a checkpoint of ``run`` with changed options, and return the new run folder."""
    checkpoint = run / f"checkpoints/step-{step:08d}"
    output = run.parent / name
    run_command(
        [
            "train",
            "-c",
            str(run / "config.toml"),
            "--resume",
            str(checkpoint),
            "--output",
            str(output),
            *options,
        ]
    )
    return output


def run_command(words: list[str]) -> None:
    """Run ``rlhf WORDS``, which must succeed."""
    try:
        code = rlhf(words)
    except SystemExit as end:
        code = end.code
    assert code in (0, None), words


def digests(run: Path, step: int) -> dict[str, str]:
    """Digests of the files of the roles after a step."""
    manifest = json.loads((run / f"checkpoints/step-{step:08d}/manifest.json").read_text())
    return {name: digest for name, digest in manifest["files"].items() if "/" in name}


def interrupted(resolved, plugins, control):
    """The run of a command that a signal ends behind its second step."""
    return RunResult(status="interrupted", steps=2, seconds=1.0, message="stopped by SIGINT")


def replay_rows(run: Path, first: int, last: int, *words: str, capsys) -> list[dict]:
    """The table's rows of a replay that must succeed."""
    capsys.readouterr()
    assert (
        replay([str(run), "--from", str(first), "--to", str(last), "--table", "json", *words]) == 0
    )
    return json.loads(capsys.readouterr().out)


def train_pairs(folder: Path) -> Path:
    """Run ``rlhf dpo`` on pairs, with a checkpoint of every step, and return the run folder."""
    rows = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": str(n + 2)} for n in range(16)]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = [
        "dpo", "--model", str(folder / "model"), "--data", str(folder / "pairs.jsonl"), "--output", str(folder / "run"),
        "--train.steps", str(STEPS), "--train.batch_size", "4", "--actor.adam.lr", "0.01", "--checkpoint.every", "1",
        "--checkpoint.keep", "10", "--checkpoint.export", "false", *QUIET,
    ]  # fmt: skip
    run_command(words)
    return folder / "run"
