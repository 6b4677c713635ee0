"""Runs of ``diagnoses.py``: one job makes one, lets the doctor look at it, and keeps what it recorded."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnoses_faults import FAULTS, SFT, Fault, planted
from diagnoses_healthy import healthy_words, write_healthy
from diagnoses_rewards import paying
from diagnoses_tasks import TASKS, write_bench_task

from rlhf_cli.main import main as rlhf
from rlhf_plugin_lab.doctor.command import diagnoses_of
from rlhf_plugin_lab.doctor.diagnosis import Verdict, diagnose
from rlhf_plugin_lab.doctor.record import LAST, Record, read_record
from rlhf_plugin_lab.recorded.problems import Problems

RECORDS = ("config.toml", "metrics.jsonl", "samples.jsonl", "ledger.jsonl", "tokens")
"""What the doctor reads of a run folder."""
QUIET = "--log.progress off --log.summary false --log.curve false --runtime.local.threads 1"

TEACHING = "--rollout.batch_size 32 --algo.loss.entropy_coef 0.1 --train.steps 60"
"""Of the runs that make a model able; what it cannot yet it still tries."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run to be made."""

    kind: str
    """``fault`` or ``healthy``."""
    task: str
    name: str
    """Of the fault."""
    seed: int

    @property
    def folder(self) -> str:
        """Folder of the records, below that of all."""
        return f"records/{self.task}/{self.name}-{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the doctor said of a run."""

    job: Job
    found: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    has_learned: bool = False
    looks: int = 1
    refused: str = ""
    """What was said if the run was refused."""
    seconds: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Seen:
        """Return what ``asdict`` wrote."""
        names = {key: tuple(values[key]) for key in ("found", "hints")}
        return cls(**{**values, **names, "job": Job(**values["job"])})

    @property
    def outcome(self) -> str:
        """Whether a fault was found, found otherwise or missed."""
        said = {*self.found, *(f"({name})" for name in self.hints)}
        if said & set(FAULTS[self.job.name].expected):
            return "found"
        return "otherwise" if self.found else "missed"

    def __str__(self) -> str:
        said = ", ".join((*self.found, *(f"({name})" for name in self.hints))) or "nothing found"
        job = f"{self.job.task} {self.job.name} {self.job.seed}, {self.seconds:.1f} s"
        if self.refused:
            return f"{job}: refused: {self.refused}"
        if self.job.kind == "fault":
            return f"{job}: {self.outcome}: {said}"
        return f"{job}: {'learned' if self.has_learned else 'idle'}: {said}"


def prepare(task: str, folder: Path, seed: int) -> None:
    """Write a task, and what its healthy runs need."""
    with contextlib.redirect_stderr(io.StringIO()):
        write_bench_task(task, folder / task)
        if task == "reverse":
            write_healthy(folder / "healthy", seed)


def teach(task: str, folder: Path) -> None:
    """Train a task's model ``able``, until it can a part of the task.

    Raises:
        SystemExit: the run was refused.
    """
    at = folder / task
    if (at / "able").exists():
        return
    run = at / "teaching"
    if TASKS[task].is_played:
        words = ["-c", f"{at}/train.toml", *f"{TEACHING} --checkpoint.export true".split()]
        said = train("train", words, run)
    else:
        words = [*examples_words(task, at, export=True), *(SFT % "train").format(task=at).split()]
        said = train("sft", [*words, "--actor.adam.lr", "1e-2", "--train.epochs", "4"], run)
    if said:
        raise SystemExit(f"{task}: {said}")
    shutil.move(run / "model", at / "able")
    shutil.rmtree(run)


def make(job: Job, folder: Path, until: float) -> Seen | None:
    """Make a run, keep what it recorded, and return what the doctor says; None: it is ``until`` by the clock."""
    began = time.time()
    if began > until:
        return None
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        if job.kind == "fault":
            said = _make_fault(job, folder / job.task, run)
        else:
            at = folder / ("healthy" if job.task == "reverse" else job.task)
            said = train(*healthy_words(job.task, at, job.seed), run)
        if said:
            return Seen(job=job, refused=said, seconds=time.time() - began)
        keep(run, folder / job.folder)
    return replace(see(job, folder / job.folder), seconds=time.time() - began)


def _make_fault(job: Job, at: Path, run: Path) -> str:
    fault, task = FAULTS[job.name], TASKS[job.task]
    with planted(fault.planted), paying(fault.reward if task.is_played else ""):
        return train(fault.command, _fault_words(fault, job, at), run)


def _fault_words(fault: Fault, job: Job, at: Path) -> list[str]:
    task = TASKS[job.task]
    short = "1" if task.is_played else "2"
    words = fault.words.format(task=at, able=at / "able", short=short, **task.rates()).split()
    if fault.reward and not task.is_played:
        words += ["--reward.use", f"{at}/rewards.py:{fault.reward}"]
    base = (
        ["-c", f"{at}/train.toml"]
        if fault.command == "train"
        else examples_words(job.task, at, export=False)
    )
    return [*base, "--seed", str(job.seed), *words]


def examples_words(task: str, at: Path, *, export: bool) -> list[str]:
    """Return the flags that runs on examples share."""
    words = f"--model.path {at}/model --train.batch_size 16 {QUIET} {TASKS[task].flags}"
    return [*words.split(), "--checkpoint.export", str(export).lower()]


def train(command: str, words: Sequence[str], run: Path) -> str:
    """Make a run anew, and return what was said if it was refused."""
    shutil.rmtree(run, ignore_errors=True)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = rlhf([command, *words, "--output", str(run)])
    has_steps = (run / "metrics.jsonl").exists()
    return said.getvalue()[-1500:] if code == 2 or not has_steps else ""


def keep(run: Path, folder: Path) -> None:
    """Move what the doctor reads into a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in RECORDS:
        if (run / name).exists():
            shutil.move(run / name, folder / name)


def see_again(seen: Seen, folder: Path) -> Seen:
    """Return what the doctor says of a run's records now."""
    return (
        seen
        if seen.refused
        else replace(see(seen.job, folder / seen.job.folder), seconds=seen.seconds)
    )


def see(job: Job, run: Path) -> Seen:
    """Return what the doctor says of a run as it ended; of a healthy one also what it said on the way."""
    verdicts = [verdict_of(run)] if job.kind == "fault" else list(verdicts_of(run))
    return Seen(
        job=job,
        found=tuple(sorted({name for each in verdicts for name in each.found})),
        hints=tuple(sorted({name for each in verdicts for name in each.hints})),
        has_learned=has_learned(run),
        looks=len(verdicts),
    )


def verdict_of(run: Path) -> Verdict:
    """Return what the doctor says."""
    record = read_record(run, Problems())
    return diagnose(record, diagnoses_of(record))


def verdicts_of(run: Path) -> Iterator[Verdict]:
    """Yield what the doctor says of a run as it ended, and as if it had been killed after every tenth step."""
    yield verdict_of(run)
    last = read_record(run, Problems()).metrics.last_step
    for step in range(LAST, last, LAST):
        with tempfile.TemporaryDirectory() as folder:
            cut = Path(folder)
            shutil.copy(run / "config.toml", cut)
            # The files of tokens are those of the whole run: a step without samples is not looked up.
            if (run / "tokens").exists():
                (cut / "tokens").symlink_to((run / "tokens").resolve())
            for name in ("metrics.jsonl", "samples.jsonl", "ledger.jsonl"):
                if (run / name).exists():
                    kept = [
                        line for line in lines_of(run / name) if json.loads(line)["step"] <= step
                    ]
                    (cut / name).write_text("".join(f"{line}\n" for line in kept))
            yield verdict_of(cut)


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file that are not empty."""
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def has_learned(run: Path) -> bool:
    """Return whether the reward rose, its task stays solved, as it may have been before the run, or the loss fell."""
    record = read_record(run, Problems())
    if record.values("reward/mean"):
        return record.rises or _stays_solved(record)
    return all(
        record.last(name) < record.first(name)
        for name in ("sft/nll", "loss/ranking", "loss/preference")
        if record.values(name)
    )


def _stays_solved(record: Record) -> bool:
    """Return whether most held-out rewards, the last one among them, are nearly the highest that is recorded."""
    sets = [series.values for _, series in record.evaluations("/reward")]
    solved = [
        [value is not None and value >= record.solved_from for value in values] for values in sets
    ]
    return bool(sets) and all(each[-1] and sum(each) > len(each) / 2 for each in solved)
