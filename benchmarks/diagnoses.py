"""What ``rlhf doctor`` finds: tiny runs with a fault in each, and healthy ones, of which none may be blamed.

    python benchmarks/diagnoses.py --seconds 700 --output runs/diagnoses
    python benchmarks/diagnoses.py --only constant_reward rate_x100 --healthy 0
    python benchmarks/diagnoses.py --only --healthy 200 --seed 1 --seconds 2400

The task is that of ``rlhf quickstart`` (reverse digits, a model with random weights). A run with a fault counts as
found if any diagnosis of ``FAULTS`` says so, as found otherwise if only others do. Healthy runs have options drawn at
random (``diagnoses_healthy.py``), models of width 16 or 32 and some seconds each; a run counts as healthy if its reward
rose, or its loss fell. Each is looked at as it ended and as if it had been killed after every tenth step, and is blamed
if there is a finding at any of these places; hints are counted apart. Runs go on until ``--seconds`` are over; those
with faults come first.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagnoses_faults import FAULTS, REWARDS, SFT, planted
from diagnoses_healthy import Draws

from rlhf_cli.main import main as rlhf
from rlhf_cli.quickstart.files import write_task
from rlhf_plugin_lab.doctor.command import diagnoses_of
from rlhf_plugin_lab.doctor.diagnosis import Verdict, diagnose
from rlhf_plugin_lab.doctor.record import LAST, read_record
from rlhf_plugin_lab.recorded.problems import Problems

BASE = """\
[model]
path = "{task}/model"
[data]
train = ["{task}/train.jsonl"]
max_prompt_tokens = 8
[reward]
use = ["{rewards}:score"]
[rollout]
batch_size = 8
n_samples_per_prompt = 8
max_new_tokens = 4
[algo.advantage]
estimator = "reinforce_baseline"
[algo.loss]
entropy_coef = 0.1
[actor.adam]
lr = 5e-3
[train]
steps = 60
[eval]
data = ["held_out={task}/test.jsonl"]
every = 10
max_samples = 16
[checkpoint]
at_end = false
export = false
[log]
progress = "off"
summary = false
tensorboard = false
curve = false
[engine.embedded]
compile = false
[runtime.local]
threads = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=700.0, help="no run starts after so many")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each fault")
    parser.add_argument("--seed", type=int, default=1, help="first seed of faults, and of draws")
    parser.add_argument("--healthy", type=int, default=100, help="healthy runs, at most")
    parser.add_argument("--only", nargs="*", help="names of faults; unset: all")
    parser.add_argument(
        "--output", type=Path, help="folder of the runs, which are kept; unset: none"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output or Path(temporary)
        bench = Bench(
            folder, time.monotonic() + arguments.seconds, keeps=arguments.output is not None
        )
        names = list(FAULTS) if arguments.only is None else arguments.only
        if names:
            bench.faults(names, range(arguments.seed, arguments.seed + arguments.seeds))
        if arguments.healthy:
            bench.healthy(arguments.seed, arguments.healthy)


class Bench:
    """Runs in a folder until a time, and what was found in them."""

    def __init__(self, folder: Path, until: float, *, keeps: bool = False) -> None:
        self._folder, self._until, self._keeps = folder, until, keeps
        self._task = folder / "task"
        self._task.mkdir(parents=True, exist_ok=True)
        write_task(self._task, digits=3, hidden_size=32)
        write_checked(self._task)
        (self._task / "rewards.py").write_text(REWARDS, encoding="utf-8")
        config = BASE.format(task=self._task, rewards=self._task / "rewards.py")
        (self._task / "train.toml").write_text(config, encoding="utf-8")
        write_rows(self._task)

    def faults(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        """Run each fault and print the table of what was found."""
        if any("{able}" in FAULTS[name].words for name in names):
            self._teach()
        print(
            "| fault | runs | found | found otherwise | missed | by |\n| --- | --- | --- | --- | --- | --- |"
        )
        for name in names:
            fault, counts, by = FAULTS[name], Counter[str](), Counter[str]()
            for seed in seeds:
                with planted(fault.planted):
                    run = self._run(fault.command, fault.words, seed, name=f"{name}-{seed}")
                if run is None:
                    continue
                found = findings(run)
                right = set(found) & set(fault.expected)
                counts["found" if right else "otherwise" if found else "missed"] += 1
                by.update(found)
            cells = (
                counts.total(),
                counts["found"],
                counts["otherwise"],
                counts["missed"],
                ", ".join(by),
            )
            print(f"| {name} | " + " | ".join(map(str, cells)) + " |", flush=True)

    def healthy(self, seed: int, runs: int) -> None:
        """Draw healthy runs, and print how many were blamed, and by what; those that learned nothing count apart."""
        draws, began, places = Draws(self._folder / "healthy", seed), time.monotonic(), 0
        counts, by = Counter[str](), {kind: Counter[str]() for kind in ("runs", "idle", "hints")}
        while counts["runs"] < runs and time.monotonic() < self._until:
            command, words = draws.next()
            run = self._folder / "run"
            said = train(command, words, run)
            if said:
                counts["refused"] += 1
                print(f"refused: {said}: {command} {' '.join(words)}", flush=True)
                continue
            kind = "runs" if has_learned(run) else "idle"
            verdicts = list(verdicts_of(run))
            found = {name for verdict in verdicts for name in verdict.found}
            counts[kind] += 1
            counts[f"{kind} blamed"] += bool(found)
            by[kind].update(found)
            by["hints"].update({name for verdict in verdicts for name in verdict.hints})
            places += len(verdicts)
            if self._keeps:
                kept = draws.folder / f"{kind}-{counts[kind]}"
                shutil.copytree(run, kept, dirs_exist_ok=True)
            if found:
                print(
                    f"{kind}-{counts[kind]}: {', '.join(found)}: {command} {' '.join(words)}",
                    flush=True,
                )
            if counts.total() % 10 == 0:
                print(f"{dict(counts)}, {time.monotonic() - began:.0f} s", flush=True)
        print(
            f"healthy, seed {seed}: {dict(counts)}, {time.monotonic() - began:.0f} s, looked at {places} times, "
            f"by { ({kind: dict(names) for kind, names in by.items()}) }"
        )

    def _teach(self) -> None:
        """Train ``able`` on right answers, until it has a part of the digits right."""
        words = SFT % "train" + " --actor.adam.lr 1e-2 --train.epochs 4"
        run = self._run("sft", words, 0, name="able", export=True)
        if run is not None:
            shutil.rmtree(self._task / "able", ignore_errors=True)
            shutil.copytree(run / "model", self._task / "able")

    def _run(
        self, command: str, words: str, seed: int, *, name: str, export: bool = False
    ) -> Path | None:
        """Return the folder of a run; None: there is no time for it.

        Raises:
            SystemExit: it was refused.
        """
        if time.monotonic() > self._until:
            return None
        run = self._folder / (name if self._keeps else "run")
        files = {"rewards": self._task / "rewards.py", "able": self._task / "able"}
        flags = words.format(task=self._task, **files).split()
        base = (
            ["-c", str(self._task / "train.toml")]
            if command == "train"
            else examples_words(self._task, export=export)
        )
        said = train(command, [*base, "--seed", str(seed), *flags], run)
        if said:
            raise SystemExit(f"{command} {words}: {said}")
        return run


def train(command: str, words: Sequence[str], run: Path) -> str:
    """Make a run anew, and return what was said if it was refused."""
    shutil.rmtree(run, ignore_errors=True)
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = rlhf([command, *words, "--output", str(run)])
    return said.getvalue()[-1500:] if code == 2 else ""


def examples_words(task: Path, *, export: bool) -> list[str]:
    """Return the flags that runs on examples share."""
    words = f"--model.path {task}/model --train.batch_size 16 --log.progress off --log.summary false --log.curve false"
    return [
        *words.split(),
        "--checkpoint.export",
        str(export).lower(),
        "--runtime.local.threads",
        "1",
    ]


def findings(run: Path) -> list[str]:
    """Return the names of the diagnoses that found something; a hint is ``(name)``."""
    verdict = verdict_of(run)
    return [*verdict.found, *(f"({name})" for name in verdict.hints)]


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
    """Return whether the reward rose, or the loss fell."""
    record = read_record(run, Problems())
    if record.values("reward/mean"):
        return record.rises
    return all(
        record.last(name) < record.first(name)
        for name in ("sft/nll", "loss/ranking", "loss/preference")
        if record.values(name)
    )


def write_checked(task: Path) -> None:
    """Tell rewards which rows are held out."""
    for name, checked in (("train", False), ("test", True)):
        rows = [json.loads(line) for line in lines_of(task / f"{name}.jsonl")]
        lines = [json.dumps(row | {"checked": checked}) + "\n" for row in rows]
        (task / f"{name}.jsonl").write_text("".join(lines))


def write_rows(task: Path) -> None:
    """Write rows for runs on examples: few of them, and pairs whose better answer is right, or is random."""
    rows = [json.loads(line) for line in lines_of(task / "train.jsonl")]
    draw = random.Random(0)
    few = "".join(json.dumps(row) + "\n" for row in rows[:32])
    (task / "few.jsonl").write_text(few)
    pairs = {"pairs": [], "random_pairs": []}
    for row in rows * 3:
        other = "".join(draw.choices("0123456789", k=3))
        wrong = "".join(draw.choices("0123456789", k=3))
        if wrong in (other, row["answer"]):
            continue
        pairs["pairs"].append({"prompt": row["prompt"], "chosen": row["answer"], "rejected": wrong})
        pairs["random_pairs"].append({"prompt": row["prompt"], "chosen": other, "rejected": wrong})
    for name, made in pairs.items():
        (task / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


if __name__ == "__main__":
    main()
