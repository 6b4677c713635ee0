"""Every estimator, loss, correction, shaper, filter and optimizer on the quickstart's task: accuracy, learning curves.

    python benchmarks/learning.py --jobs 2 --output runs/learning
    python benchmarks/learning.py --only estimator:rloo filter --seeds 1 2 3 --output runs/few
    python benchmarks/learning.py --only loss:distill --teacher runs/reverse_digits/model --output runs/distill
    python benchmarks/learning.py --publish runs/learning/results.json runs/few/results.json

The first lines train: one process of one thread each, ``--jobs`` of them at a time, with the options of
``examples/reverse_digits/run.toml`` and those in ``OPTIONS`` below. The last one adds the results to those in
``docs/algorithms/curves/results.jsonl``, in place of older ones of the same component and seed, and writes curves and
table from all of them: see ``learning_pages``.

``optimizer:adam8bit`` needs bitsandbytes, which is not among the requirements: ``pip install bitsandbytes``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_core import Component, plugins

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples/reverse_digits"
SUPERVISED = "supervised_data"
"""What a loss of given responses needs. It runs as a further term, the others as the policy loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of components."""

    hook: str
    """Lists them."""
    option: str
    """Picks one."""
    has: Callable[[Component[Any]], bool] = lambda component: True
    """Which of the hook's components are of this kind."""


KINDS = {
    "estimator": Kind(hook="rlhf_advantage_estimators", option="algo.advantage.estimator"),
    "loss": Kind(
        hook="rlhf_policy_losses",
        option="algo.loss.policy",
        has=lambda component: SUPERVISED not in component.needs,
    ),
    "term": Kind(
        hook="rlhf_policy_losses",
        option="algo.terms.use",
        has=lambda component: SUPERVISED in component.needs,
    ),
    "correction": Kind(hook="rlhf_is_corrections", option="algo.correction.kind"),
    "shaper": Kind(hook="rlhf_reward_shapers", option="reward.shapers"),
    "filter": Kind(hook="rlhf_sample_filters", option="rollout.filters"),
    "optimizer": Kind(hook="rlhf_optimizers", option="actor.optim"),
}

_BOUNDS = "--algo.loss.{loss}.clip_low 0.05 --algo.loss.{loss}.clip_high 0.05"

SEVERAL_UPDATES = ("--train.batch_size", "128")
"""Two updates per batch, so that ratios leave 1 and what a loss does with them matters."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "loss": SEVERAL_UPDATES,
    # At 0.3 the bonus and the advantages balance for hundreds of steps: on one machine seed 1 ended with an entropy
    # of 1.8 nats and an accuracy of 0.89, seed 3 with one of 0.95.
    "estimator:group_norm": ("--algo.loss.entropy_coef", "0.2"),
    # Advantages of most samples are 0, so that the usual bonus would outweigh them.
    "estimator:grpo_passk": ("--algo.loss.entropy_coef", "0.02"),
    "estimator:raft": ("--algo.advantage.raft.keep", "best", "--algo.loss.entropy_coef", "0.1"),
    # With one turn its two levels are the same, so advantages are twice as large. At 0.6 the bonus sometimes outweighs
    # them: at seed 2 the policy stayed as random as it was at half the way, with 0.85.
    "estimator:gigpo": ("--algo.loss.entropy_coef", "0.45"),
    # A learning rate of 2e-3 moves sequences far beyond bounds that are meant for 1e-6.
    "loss:gspo": (*_BOUNDS.format(loss="gspo").split(),),
    "loss:gspo_token": (*_BOUNDS.format(loss="gspo_token").split(),),
    "loss:luspo": (*_BOUNDS.format(loss="luspo").split(),),
    # At 0.3 the entropy was gone before the third digit was right: seed 1 ended at 0.70 on one machine, at 1.00 on
    # another.
    "loss:clip_cov": ("--algo.loss.entropy_coef", "0.45"),
    # It has no ratio, so a second update of a batch would be biased.
    "loss:gpg": ("--train.batch_size", "256"),
    # Beside RL, the right answers of some prompts.
    "term:sft": (
        *("--supervised.data", "examples/reverse_digits/data/train.jsonl"),
        *("--supervised.response_key", "answer", "--supervised.batch_size", "16"),
        *("--algo.terms.sft.weight", "0.1"),
    ),
    # Room for answers that are too long, which this is about: a right one has four tokens, its end included.
    "shaper:overlong": ("--rollout.max_new_tokens", "8", "--reward.overlong.buffer", "4"),
    # The bonus is noise to whoever has not learned to end yet, so a smaller one on entropy is enough.
    "shaper:length_bonus": (
        *("--rollout.max_new_tokens", "6", "--reward.length_bonus.correct_above", "5.5"),
        *("--algo.loss.entropy_coef", "0.2"),
    ),
    # Cuts at both ends of 0 to 6, and leaves the order of two digits and three.
    "shaper:clip": ("--reward.clip.low", "1", "--reward.clip.high", "5"),
    # The default estimator divides by the batch's standard deviation, which would undo any scale. Rewards become almost
    # half as large, and so must the bonus.
    "shaper:normalize": (
        *("--algo.advantage.estimator", "dr_grpo", "--algo.loss.entropy_coef", "0.2"),
    ),
    # Three digits are six points. Once most prompts are solved, steps train on what a second draw finds.
    "filter:dynamic_sampling": (
        *("--rollout.dynamic_sampling.high", "6", "--rollout.max_refills", "1"),
    ),
    "filter:zero_variance": ("--rollout.max_refills", "1"),
    "filter:drop_errors": (
        *("--reward.use", "benchmarks/crashing_reward.py:score"),
        *("--rollout.drop_errors.metric", "score/error", "--rollout.max_refills", "1"),
    ),
    # Sampling may be two steps ahead, and the filter keeps what is one step old.
    "filter:drop_stale": ("--rollout.max_staleness", "2", "--rollout.drop_stale.limit", "1"),
    # With momentum 0.9, 0.3 stopped after two digits at one of two seeds, and 1.0 learned nothing.
    "optimizer:sgd": ("--actor.sgd.lr", "0.1", "--actor.sgd.momentum", "0.9"),
    "optimizer:muon": ("--actor.muon.lr", "2e-3"),
    "optimizer:adam8bit": ("--actor.adam8bit.lr", "2e-3"),
}
"""More options, by kind and by ``kind:name``, which wins."""

NOT_ALONE = {"loss:distill": "needs a teacher, see --teacher"}
"""What does not run by itself, and why."""

LIBRARIES = {"optimizer:adam8bit": "bitsandbytes"}
"""What runs only where this module can be imported."""

METRIC = "eval/held_out/T0/pass@1"


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
    for kind, name in components():
        label = f"{kind}:{name}"
        flags = [f"--{KINDS[kind].option}", name, *_more_options(kind, label)]
        if label == "loss:distill" and arguments.teacher:
            flags += ["--algo.teacher.path", str(arguments.teacher)]
        elif label in NOT_ALONE or not can_import(label):
            continue
        if not arguments.only or label in arguments.only or kind in arguments.only:
            yield Job(kind=kind, name=name, seed=seed, flags=tuple(flags))


def components() -> Iterator[tuple[str, str]]:
    """Kind and name of everything that is installed."""
    installed = plugins.load()
    for kind, of in KINDS.items():
        for entry in installed.registries[of.hook]:
            if of.has(entry.component):
                yield kind, entry.name


def can_import(label: str) -> bool:
    """Whether the library that a component may need is there."""
    library = LIBRARIES.get(label)
    return library is None or importlib.util.find_spec(library) is not None


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
        *("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"),
        *("--checkpoint.export", "false"),
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
        "hardware": f"{_cpu_model()}, {os.cpu_count()} cores, {arguments.jobs} runs at a time, one thread each",
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "results": [asdict(result) for result in results],
    }
    (arguments.output / "results.json").write_text(json.dumps(document, indent=1) + "\n")


def prepare() -> None:
    """Write the example's data and model, unless they are there: other runs may be reading them."""
    if (EXAMPLE / "data").exists():
        return
    with tempfile.TemporaryDirectory(dir=EXAMPLE) as folder:
        made = Path(folder) / "data"
        command = [sys.executable, str(EXAMPLE / "prepare.py"), "--output", str(made)]
        subprocess.run(command, check=True, capture_output=True)
        # Renaming fails if another process was faster, whose files are the same.
        with contextlib.suppress(OSError):
            made.rename(EXAMPLE / "data")


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
    parser.add_argument(
        "--publish", type=Path, nargs="+", metavar="RESULTS", help="write the documentation"
    )
    arguments = parser.parse_args()
    if arguments.publish:
        # As a script this file's own folder is on the path, not the one above it.
        sys.path.insert(0, str(ROOT))
        from benchmarks.learning_pages import publish

        publish(arguments.publish, ROOT / "docs/algorithms", tuple(KINDS))
        return
    prepare()
    train(arguments)


if __name__ == "__main__":
    main()
