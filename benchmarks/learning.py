"""Every estimator, loss, correction and optimizer on the quickstart's task: accuracy, seconds, learning curves.

    python benchmarks/learning.py --jobs 2 --output runs/learning
    python benchmarks/learning.py --only estimator:rloo loss:cispo --seeds 1 2 3 --output runs/few
    python benchmarks/learning.py --publish runs/learning/results.json

The first lines train: one process of one thread each, ``--jobs`` of them at a time, with the options of
``examples/reverse_digits/run.toml`` and those in ``OPTIONS`` below. The last one draws the curves into
``docs/algorithms/curves`` and writes the table into ``docs/algorithms/README.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_core import plugins

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples/reverse_digits"
KINDS = {
    "estimator": ("rlhf_advantage_estimators", "algo.advantage.estimator"),
    "loss": ("rlhf_policy_losses", "algo.loss.policy"),
    "correction": ("rlhf_is_corrections", "algo.correction.kind"),
    "optimizer": ("rlhf_optimizers", "actor.optim"),
}
"""What is trained -> the hook that lists it, and the option that picks it."""

_BOUNDS = "--algo.loss.{loss}.clip_low 0.05 --algo.loss.{loss}.clip_high 0.05"

SEVERAL_UPDATES = ("--train.batch_size", "128")
"""Two updates per batch, so that ratios leave 1 and what a loss does with them matters."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "loss": SEVERAL_UPDATES,
    # Advantages of most samples are 0, so that the usual bonus would outweigh them.
    "estimator:grpo_passk": ("--algo.loss.entropy_coef", "0.02"),
    "estimator:raft": ("--algo.advantage.raft.keep", "best", "--algo.loss.entropy_coef", "0.1"),
    # With one turn its two levels are the same, so advantages are twice as large.
    "estimator:gigpo": ("--algo.loss.entropy_coef", "0.6"),
    # A learning rate of 2e-3 moves sequences far beyond bounds that are meant for 1e-6.
    "loss:gspo": (*_BOUNDS.format(loss="gspo").split(),),
    "loss:gspo_token": (*_BOUNDS.format(loss="gspo_token").split(),),
    "loss:luspo": (*_BOUNDS.format(loss="luspo").split(),),
    # It has no ratio, so a second update of a batch would be biased.
    "loss:gpg": ("--train.batch_size", "256"),
    "optimizer:sgd": ("--actor.sgd.lr", "0.3", "--actor.sgd.momentum", "0.9"),
    "optimizer:muon": ("--actor.muon.lr", "2e-3"),
}
"""More options, by kind and by ``kind:name``, which wins."""

NOT_ALONE = {
    "loss:sft": "imitates given responses; only a further term",
    "loss:distill": "needs a teacher, see --teacher",
    "optimizer:adam8bit": "needs a GPU",
}
"""What does not run by itself, and why."""

LEARNED = {"optimizer:sgd": 0.5}
"""Accuracy from which on a component has learned, where that is not 0.9. One learning rate fits few weights at once."""

METRIC = "eval/held_out/T0/pass@1"
START, END = "<!-- learning table -->", "<!-- end of learning table -->"
CURVE = "## Learning curve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run."""

    kind: str
    name: str
    seed: int
    flags: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run came to."""

    kind: str
    name: str
    seed: int
    flags: tuple[str, ...]
    seconds: float
    """Of training steps."""
    steps: tuple[int, ...]
    accuracy: tuple[float, ...]
    """Held-out exact accuracy at these steps."""
    error: str = ""


def jobs_of(arguments: argparse.Namespace) -> Iterator[Job]:
    """All runs that are asked for."""
    return (job for seed in arguments.seeds for job in _jobs_of_seed(seed, arguments))


def _jobs_of_seed(seed: int, arguments: argparse.Namespace) -> Iterator[Job]:
    installed = plugins.load()
    for kind, (hook, option) in KINDS.items():
        for entry in installed.registries[hook]:
            label = f"{kind}:{entry.name}"
            flags = [f"--{option}", entry.name, *_more_options(kind, label)]
            if label == "loss:distill" and arguments.teacher:
                flags += ["--algo.teacher.path", str(arguments.teacher)]
            elif label in NOT_ALONE:
                continue
            if not arguments.only or label in arguments.only or kind in arguments.only:
                yield Job(kind=kind, name=entry.name, seed=seed, flags=tuple(flags))


def _more_options(kind: str, label: str) -> tuple[str, ...]:
    own, general = OPTIONS.get(label, ()), OPTIONS.get(kind, ())
    taken = set(own[::2])
    pairs = zip(general[::2], general[1::2], strict=True)
    return (*own, *(word for pair in pairs if pair[0] not in taken for word in pair))


def run(job: Job, arguments: argparse.Namespace) -> Result:
    """Train once and read the records."""
    folder = arguments.output / f"{job.kind}-{job.name}-{job.seed}"
    command = [
        *(sys.executable, "-m", "rlhf_cli", "train", "-c", str(EXAMPLE / "run.toml"), *job.flags),
        *("--seed", str(job.seed), "--output", str(folder), "--steps", str(arguments.steps)),
        *(
            "--log.progress",
            "off",
            "--log.tensorboard",
            "false",
            "--log.curve",
            "false",
            "--checkpoint.export",
            "false",
        ),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    steps, accuracy, seconds = records_of(folder / "metrics.jsonl")
    error = done.stderr.strip()[-500:] if done.returncode else ""
    result = Result(
        kind=job.kind,
        name=job.name,
        seed=job.seed,
        flags=job.flags,
        seconds=seconds,
        steps=steps,
        accuracy=accuracy,
        error=error,
    )
    last = f"{accuracy[-1]:.3f}" if accuracy else "none"
    print(f"{job.label:36} seed {job.seed:<4} {last:6} {seconds:6.0f} s  {error}", flush=True)
    return result


def records_of(path: Path) -> tuple[tuple[int, ...], tuple[float, ...], float]:
    """Steps and values of the evaluations, and the seconds of all training steps."""
    steps, accuracy, seconds = [], [], 0.0
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for record in map(json.loads, lines):
        seconds += record.get("timing", {}).get("step_s", 0.0)
        if METRIC in record.get("eval", {}):
            steps.append(record["step"])
            accuracy.append(record["eval"][METRIC])
    return tuple(steps), tuple(accuracy), seconds


def train(arguments: argparse.Namespace) -> None:
    """Run everything and write ``results.json``."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    jobs = list(jobs_of(arguments))
    started = time.perf_counter()
    results: list[Result] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(lambda job: run(job, arguments), jobs):
            results.append(result)
            save(results, arguments)
    print(f"{len(results)} runs in {time.perf_counter() - started:.0f} s")
    if any(result.error for result in results):
        raise SystemExit("some runs failed")


def save(results: Sequence[Result], arguments: argparse.Namespace) -> None:
    """Write what is there so far."""
    document = {
        "command": f"python benchmarks/learning.py --jobs {arguments.jobs} --seeds "
        + " ".join(map(str, arguments.seeds)),
        "hardware": f"{_cpu_model()}, {os.cpu_count()} cores, {arguments.jobs} runs at a time, one thread each",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "results": [asdict(result) for result in results],
    }
    (arguments.output / "results.json").write_text(json.dumps(document, indent=1) + "\n")


def prepare() -> None:
    """Write the example's data and model."""
    subprocess.run([sys.executable, str(EXAMPLE / "prepare.py")], check=True, capture_output=True)


def publish(path: Path) -> None:
    """Draw the curves and write the table from a results file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    groups: dict[tuple[str, str], list[dict]] = {}
    for result in document["results"]:
        groups.setdefault((result["kind"], result["name"]), []).append(result)
    curves = ROOT / "docs/algorithms/curves"
    curves.mkdir(exist_ok=True)
    rows = []
    for (kind, name), results in groups.items():
        picture = f"{kind}_{name}.png"
        draw(results, curves / picture, f"{kind} {name}")
        rows.append(_row(kind, name, results))
        _show_on_page(name, kind, picture, results)
    note = (
        "Held-out exact accuracy on `examples/reverse_digits` after 800 steps from random weights, with the options of "
        f"`benchmarks/learning.py`. {document['hardware']}; {document['date']}; `{document['command']}`. Seconds are "
        "those of the whole training, beside as many others as there are cores; alone it takes about half."
    )
    table = [
        "| component | seeds | accuracy, by seed | steps to 0.9 | seconds |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    page = ROOT / "docs/algorithms/README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    text = "\n".join([START, note, "", *table, END])
    page.write_text(before + text + after, encoding="utf-8")
    print(f"{page} and {len(groups)} curves in {curves}")


def _show_on_page(name: str, kind: str, picture: str, results: Sequence[dict]) -> None:
    """Put the curve at the end of the component's page, in place of the one before."""
    page = ROOT / f"docs/algorithms/{name}.md"
    text = page.read_text(encoding="utf-8").partition(CURVE)[0].rstrip()
    seeds = " ".join(str(result["seed"]) for result in results)
    command = f"python benchmarks/learning.py --only {kind}:{name} --seeds {seeds}"
    page.write_text(
        f"{text}\n\n{CURVE}\n\n![held-out accuracy over steps](curves/{picture})\n\n`{command}`, on "
        "`examples/reverse_digits`; see [the table](README.md#learning-the-quickstart).\n",
        encoding="utf-8",
    )


def _row(kind: str, name: str, results: Sequence[dict]) -> str:
    final = [result["accuracy"][-1] if result["accuracy"] else 0.0 for result in results]
    reached = [
        next((s for s, a in zip(r["steps"], r["accuracy"], strict=True) if a >= 0.9), None)
        for r in results
    ]
    steps = "not reached" if None in reached else str(int(statistics.median(reached)))
    seconds = statistics.median(result["seconds"] for result in results)
    return (
        f"| [{name}]({name}.md) ({kind}) | {', '.join(str(result['seed']) for result in results)} | "
        f"{', '.join(f'{value:.3f}' for value in final)} | {steps} | {seconds:.0f} |"
    )


def draw(results: Sequence[dict], path: Path, title: str) -> None:
    """One small picture: accuracy over steps, a line per seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for result in results:
        axes.plot(
            result["steps"],
            result["accuracy"],
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=f"seed {result['seed']}",
        )
    axes.set(xlabel="step", ylabel="held-out accuracy", ylim=(-0.03, 1.03), title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    # Without the version of matplotlib in it, the same curve gives the same file.
    figure.savefig(path, dpi=90, metadata={"Software": None})


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("runs/learning"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--only", nargs="+", default=[], help="KIND or KIND:NAME")
    parser.add_argument(
        "--teacher", type=Path, help="exported model of an earlier run, for distill"
    )
    parser.add_argument("--publish", type=Path, metavar="RESULTS", help="write the documentation")
    arguments = parser.parse_args()
    if arguments.publish:
        publish(arguments.publish)
        return
    prepare()
    train(arguments)


if __name__ == "__main__":
    main()
