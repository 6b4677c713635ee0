"""What ``rlhf doctor`` finds: tiny runs with a fault in each, and healthy ones, of which none may be blamed.

    python benchmarks/diagnoses.py --jobs 2 --seconds 700 --output runs/diagnoses
    python benchmarks/diagnoses.py --only constant_reward rate_x100 --tasks sorting --healthy 0
    python benchmarks/diagnoses.py --only --healthy 200 --seed 1 --seconds 2400
    python benchmarks/diagnoses.py --only --seed 101 --draws 121 128 --tasks shapes --output runs/blamed
    python benchmarks/diagnoses.py --again --output runs/diagnoses

Tasks are ``reverse``, that of ``rlhf quickstart`` (reverse digits), ``sorting`` (three digits in turns) and ``shapes``
(colors in images), all with models of random weights (``diagnoses_tasks.py``). A run with a fault counts as found if
any diagnosis of ``FAULTS`` says so, as found otherwise if only others do. Healthy runs have options drawn at random
(``diagnoses_healthy.py``) and some seconds each; a run counts as healthy if its reward rose, its held-out rewards are
mostly and at last the highest there is, or its loss fell, and is idle otherwise. Each is looked at as it ended and as
if it had been killed after every tenth step, and is blamed if there is a finding at any of these places; hints are
counted apart. ``--draws`` makes chosen ones again.

Runs are made by ``--jobs`` processes of one thread each, those with faults first; none starts after ``--seconds``. With
``--output`` the folder has a line for each run in ``results.jsonl`` as soon as it is done, ``table.md``, and what the
runs recorded: ``--again`` looks at these records anew and trains nothing, and a run that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from diagnoses_faults import FAULTS
from diagnoses_runs import Job, Seen, make, prepare, see_again, teach
from diagnoses_tasks import TASKS

TABLE_EVERY = 50
"""Runs from one writing of the table to the next."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=700.0, help="no run starts after so many")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=2, help="runs of each fault and task")
    parser.add_argument("--seed", type=int, default=1, help="first seed of faults, and of draws")
    parser.add_argument("--healthy", type=int, default=100, help="healthy runs of each task")
    parser.add_argument(
        "--draws",
        type=int,
        nargs="+",
        help="healthy runs of these draws alone, with the --seed of the models that they had; "
        "unset: as many as --healthy, from --seed on",
    )
    parser.add_argument("--only", nargs="*", choices=list(FAULTS), help="faults; unset: all")
    parser.add_argument("--output", type=Path, help="folder of records and results; unset: none")
    parser.add_argument("--again", action="store_true", help="look at what --output has, only")
    arguments = parser.parse_args()
    faults = list(FAULTS) if arguments.only is None else arguments.only
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    draws = arguments.draws or range(arguments.seed, arguments.seed + arguments.healthy)
    jobs = [
        *(
            Job("fault", task, name, s)
            for s in seeds
            for name in faults
            for task in arguments.tasks
        ),
        *(Job("healthy", task, "healthy", s) for s in draws for task in arguments.tasks),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.again:
            print(tables(look_again(folder, arguments.jobs)))
            return
        bench = Bench(folder.resolve(), arguments.jobs, arguments.seconds)
        print(tables(bench.run(jobs, arguments.tasks, arguments.seed)))


class Bench:
    """Runs in a folder, by several processes, until a time."""

    def __init__(self, folder: Path, jobs: int, seconds: float) -> None:
        self._folder, self._jobs, self._began = folder, jobs, time.monotonic()
        self._until = self._began + seconds

    def run(self, jobs: Sequence[Job], tasks: Sequence[str], seed: int) -> list[Seen]:
        """Make the runs that are not there, and return what was seen in all."""
        seen = read_results(self._folder)
        there = {each.job for each in seen}
        left = [job for job in jobs if job not in there]
        with (
            (self._folder / "results.jsonl").open("a", encoding="utf-8") as results,
            pool(self._jobs) as workers,
        ):
            wait(workers.submit(prepare, task, self._folder, seed) for task in tasks)
            wait(workers.submit(teach, task, self._folder) for task in tasks)
            self._say("tasks and able models are there")
            made = [workers.submit(make, job, self._folder, self._left()) for job in left]
            for future in as_completed(made):
                one = future.result()
                if one is None:
                    continue
                seen.append(one)
                results.write(json.dumps(asdict(one)) + "\n")
                results.flush()
                self._say(f"{len(seen)} of {len(there) + len(left)}: {one}")
                if len(seen) % TABLE_EVERY == 0:
                    (self._folder / "table.md").write_text(tables(seen), encoding="utf-8")
        (self._folder / "table.md").write_text(tables(seen), encoding="utf-8")
        return seen

    def _left(self) -> float:
        """Return the time of the clock at which no run starts any more; workers are processes of this machine."""
        return time.time() + self._until - time.monotonic()

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:.0f} s, {what}", flush=True)


def pool(jobs: int) -> ProcessPoolExecutor:
    """Return processes that start anew, so that none has a thread or a patch of this one."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def wait(futures: Iterator[Future[None]]) -> None:
    """Wait for all, which are begun together."""
    for future in list(futures):
        future.result()


def read_results(folder: Path) -> list[Seen]:
    """Return what a folder's earlier runs have shown; a last line that is not whole is left out."""
    path = folder / "results.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [Seen.of(json.loads(line)) for line in whole.splitlines()]


def look_again(folder: Path, jobs: int) -> list[Seen]:
    """Return what the doctor says now of the records that a folder has."""
    with pool(jobs) as workers:
        return list(
            workers.map(see_again, read_results(folder), [folder] * len(read_results(folder)))
        )


def tables(seen: Sequence[Seen]) -> str:
    """Return both tables: faults by task, and healthy runs by task."""
    return f"{fault_table(seen)}\n\n{healthy_table(seen)}\n"


def fault_table(seen: Sequence[Seen]) -> str:
    """Return how many runs were found, of how many, for each fault and task, and by what; ``+k``: by another name."""
    cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    by: dict[str, Counter[str]] = defaultdict(Counter)
    for each in seen:
        if each.job.kind == "fault" and not each.refused:
            cells[each.job.name, each.job.task][each.outcome] += 1
            cells["all", each.job.task][each.outcome] += 1
            by[each.job.name].update([*each.found, *(f"({hint})" for hint in each.hints)])
    head = ["fault", *TASKS, "by"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name in (*FAULTS, "all"):
        counts = [cells[name, task] for task in TASKS]
        if any(count.total() for count in counts):
            lines.append("| " + " | ".join([name, *map(_cell, counts), _names(by[name])]) + " |")
    return "\n".join(lines)


def _cell(count: Counter[str]) -> str:
    if not count.total():
        return "-"
    other = f", +{count['otherwise']}" if count["otherwise"] else ""
    return f"{count['found']} of {count.total()}{other}"


def healthy_table(seen: Sequence[Seen]) -> str:
    """Return how many healthy runs were blamed, and by what."""
    lines = [
        "| healthy runs | learned | blamed | by | hints | idle | blamed | by | refused | looks |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for task in TASKS:
        runs = [each for each in seen if each.job.kind == "healthy" and each.job.task == task]
        if not runs:
            continue
        made = [each for each in runs if not each.refused]
        learned, idle = ([e for e in made if e.has_learned is kind] for kind in (True, False))
        hints = Counter(hint for each in learned for hint in each.hints)
        cells = [task, *_blamed(learned), _names(hints), *_blamed(idle), len(runs) - len(made)]
        lines.append("| " + " | ".join(map(str, [*cells, sum(each.looks for each in made)])) + " |")
    return "\n".join(lines)


def _blamed(runs: Sequence[Seen]) -> list[object]:
    """Return how many runs there are, how many were blamed, and by what."""
    by = Counter(name for each in runs for name in each.found)
    return [len(runs), sum(bool(each.found) for each in runs), _names(by)]


def _names(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


if __name__ == "__main__":
    main()
