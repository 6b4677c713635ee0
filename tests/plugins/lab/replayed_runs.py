"""Small runs of ``rlhf train`` that are replayed, and their weights."""

import json
from pathlib import Path

from rlhf_cli.main import main as rlhf
from rlhf_core.contracts import RunResult
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
