"""Export of a run's episodes as a file of ``TrainingTrace``, a line for each, as far as the run recorded them."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core import ConfigError
from rlhf_episodes.traces import TrainingTrace, TrainingTurn, write_traces

from ..paper.contents import CONFIG, SAMPLES, require_run
from ..recorded.lines import lines_of, step_of
from ..recorded.options import read_options
from ..recorded.problems import Problems
from ..recorded.tokens import FOLDER
from ..replaceable import why_not_replaceable
from .messages import unicode_of
from .rows import read_rows
from .turns import turns_of

_START = b'{"schema_version":'
RECORD = "rlhf train ... --observers.use token_files --rollout.compared_share 1 --log.samples 16"
"""Command that records what a trace needs."""
_NUMBER = re.compile(r"-?\d{1,9}(\.\d{1,20})?(e-?\d{1,2})?")
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


@dataclass(slots=True)
class Exporter:
    """Traces of one run, and what is missing of them."""

    run: Path
    wanted: Callable[[int], bool]
    """Whether the episodes of a step are exported."""
    problems: Problems = field(default_factory=Problems)
    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    steps: set[int] = field(default_factory=set)
    """Steps of which an episode was exported."""
    finds_rollouts: bool = False
    """Whether a rollout of the wanted steps is recorded, exported or not."""

    def traces(self) -> Iterator[TrainingTrace]:
        """Yield a trace for each recorded episode, in the order of ``samples.jsonl``."""
        shared = _shared(self.run, self.problems)
        lines = (
            line.value
            for line in lines_of(self.run / SAMPLES, self.problems)
            if "example" not in line.value  # a row to learn of, which nobody sampled
        )
        for step, samples in itertools.groupby(lines, step_of):
            if step is None:
                self.problems.note(f"lines of {SAMPLES} without a step are left out")
            elif self.wanted(step):
                yield from self._of_step(step, list(samples), shared)

    def _of_step(
        self, step: int, samples: list[dict[str, Any]], shared: Mapping[str, Any]
    ) -> Iterator[TrainingTrace]:
        rows = read_rows(self.run / FOLDER / f"step-{step:08d}.parquet", self.problems)
        episodes: dict[str, list[TrainingTurn]] = {}
        # A step that was done twice, because its process was killed, counts as it was done last.
        latest = {str(sample.get("uid")): sample for sample in samples}
        self.finds_rollouts = True
        for uid, sample in latest.items():
            turns = episodes.setdefault(uid.rpartition(".")[0] or uid, [])
            if uid not in rows:
                self.problems.note(
                    "rollouts whose tokens are not recorded are left out", f"{uid} of step {step}"
                )
            else:
                turns += turns_of(step, uid, sample, rows[uid], shared, self.problems)
        for turns in filter(None, episodes.values()):
            self.episodes += 1
            self.turns += len(turns)
            self.tokens += sum(len(turn.completion_token_ids) for turn in turns)
            self.steps.add(step)
            yield TrainingTrace(turns=tuple(turns))


def export_traces(run: Path, path: Path, wanted: Callable[[int], bool]) -> None:
    """Write the episodes of a run into a file, and say what is in it and what is missing.

    Raises:
        ConfigError: the folder is no run folder, none of its rollouts has tokens with log-probs, or the file is
            something else; it is then as it was.
        StorageError: the file cannot be written.
    """
    require_run(run)
    problem = why_not_replaceable(path, _START, "file of traces")
    if problem is not None:
        raise ConfigError(f"--export-traces {path}: {problem}", code="output/not-exported")
    exporter = Exporter(run, wanted)
    traces = exporter.traces()
    first = next(traces, None)
    if first is None and not exporter.finds_rollouts:
        raise ConfigError(
            f"--export-traces {path}: expected recorded rollouts of these steps, and {run / SAMPLES} has none. Leave "
            "--steps out, or name another run of rlhf train",
            code="lab/no-rollouts",
        )
    if first is None:
        missing = "; ".join(exporter.problems.lines())
        raise ConfigError(
            f"rlhf view {run} --export-traces {path}: expected rollouts with recorded tokens and the sampler's "
            f"log-probs, and there is none ({missing}). Record them: {RECORD}",
            code="lab/rollouts-without-tokens",
        )
    write_traces(path, itertools.chain([first], traces))
    print(
        f"{run}: {exporter.episodes} episodes of {len(exporter.steps)} steps, {exporter.turns} turns, "
        f"{exporter.tokens} tokens of the policy"
    )
    missing_lines = exporter.problems.lines()
    for problem in missing_lines:
        print(f"{run}: {problem}", file=sys.stderr)
    if missing_lines:
        print(f"{run}: to have all of them: {RECORD}", file=sys.stderr)
    size = path.stat().st_size / 1e6
    print(f"written: {path} ({size:.1f} MB); each line is a TrainingTrace of OpenEnv")


def _shared(run: Path, problems: Problems) -> dict[str, Any]:
    """Return what all turns of a run have in common: its folder's name, the model's, and options of the sampler."""
    options = read_options(run / CONFIG, problems).values
    sampling = {name: options.get(f"rollout.{name}", "") for name in _SAMPLING}
    numbers = {name: _number(text) for name, text in sampling.items() if _NUMBER.fullmatch(text)}
    model = options.get("model.path")
    return {
        "run": unicode_of(run.resolve().name),
        **({"model": unicode_of(model)} if model else {}),
        **({"sampling_params": numbers} if numbers else {}),
    }


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
