"""Runs of random options, of all components together: none ends in a traceback, how they are computed changes no
result, and one that is killed goes on to the bit."""

import math
import random
from pathlib import Path

import pytest
from tests.cases import one_in

from .conftest import read_metrics
from .forked_runs import QUIET, check_that_killed_runs_resume, run_in_a_fork
from .random_options import accepted, drawn, neutral

pytestmark = pytest.mark.slow

COMMON = (
    *("--model", "model", *QUIET),
    *("--rollout.batch_size", "3", "--rollout.n_samples_per_prompt", "3"),
    *("--rollout.max_new_tokens", "6", "--data.max_prompt_tokens", "8"),
    *("--engine", "embedded", "--runtime", "local", "--backend", "torch"),
    *("--runtime.local.threads", "1"),
)
ROWS = ("--data", "mine.jsonl", "--reward", "vary.py:vary", "--reward.vary.isolate", "false")
TURNS = (
    *("--executor", "multi_turn", "--env", "echo_after_hint", "--rollout.max_length", "40"),
    *ROWS,
)
PHASES = ("generate", "reward", "model_outputs", "train", "save")
UNLIKE = ("mismatch/", "train/micro_batches")
"""Metrics of rounding errors, and of how the rows were packed."""


def words_of(seed: int, *more: str) -> list[str]:
    tasks = TURNS if random.Random(seed).random() < 0.5 else ROWS
    return accepted([*COMMON, *tasks, *more], drawn(seed))


@pytest.mark.parametrize("seed", one_in(8, range(40)))
def test_how_a_run_is_computed_changes_no_result(workspace, seed):
    words = words_of(seed, "--steps", "1", "--checkpoint.at_end", "false")
    draw = random.Random(-seed)
    found = []
    for name in ("one", "other"):
        ways = [{option: value} for option, value in neutral(draw).items()]
        run = ["train", *accepted(words, ways), "--output", name]
        assert run_in_a_fork(workspace, name, run) == 0, log_of(workspace, name)
        found.append(read_metrics(Path(name))[0]["metrics"])

    one, other = (
        {name: value for name, value in metrics.items() if not name.startswith(UNLIKE)}
        for metrics in found
    )
    assert all(map(math.isfinite, one.values())), one
    assert one == pytest.approx(other, rel=1e-3, abs=1e-5), words


@pytest.mark.parametrize("seed", one_in(8, range(100, 124)))
def test_a_run_that_is_killed_goes_on_to_the_bit(workspace, seed):
    words = words_of(seed, "--steps", "4", "--checkpoint.every", "1")
    draw = random.Random(-seed)

    check_that_killed_runs_resume(
        workspace, ["train", *words], draw.choice(PHASES), (draw.randint(2, 4),)
    )


def log_of(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text()[-2000:]
