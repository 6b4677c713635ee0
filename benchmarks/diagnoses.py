"""What ``rlhf doctor`` finds: tiny runs with a fault in each, and healthy ones, of which none may be blamed.

    python benchmarks/diagnoses.py --seconds 700 --output runs/diagnoses
    python benchmarks/diagnoses.py --only constant_reward rate_x100 --healthy 0

The task is that of ``rlhf quickstart`` (reverse digits, a model with random weights). A run with a fault counts as
found if any diagnosis of ``FAULTS`` says so, as found otherwise if only others do. Healthy runs differ in seed,
estimator, rate and command; each is looked at as it ended and as if it had been killed after every tenth step, and is
blamed if there is a finding at any of these places. A run counts as healthy if its reward rose, or its loss fell.
Runs go on until ``--seconds`` are over; those with faults come first.
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
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.main import main as rlhf
from rlhf_cli.quickstart.files import write_task
from rlhf_plugin_lab.doctor.command import diagnoses_of
from rlhf_plugin_lab.doctor.diagnosis import diagnose
from rlhf_plugin_lab.doctor.record import LAST, read_record
from rlhf_plugin_lab.recorded.problems import Problems

ROOT = Path(__file__).parent.parent
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
REWARDS = '''\
"""Rewards of the runs with faults."""

import zlib


def score(response, answer, truncated):
    right = sum(a == b for a, b in zip(response, answer))
    return 2.0 * right if not truncated and len(response) <= len(answer) else 1.0 * right


def constant(response, answer):
    return 0.5


def misread(response, answer):
    return float(response.strip() == f"{answer} ")


def sevens(response, answer):
    return float(response.count("7"))


def flipped(response, answer, truncated):
    return -score(response, answer, truncated)


def noise(response, answer):
    return float(zlib.crc32(response.encode()) % 1000) / 1000


def rare(response, answer):
    return float(response == answer == "000")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A run with a fault."""

    words: str
    """Flags; ``{rewards}`` and ``{task}`` are files."""
    expected: tuple[str, ...]
    """Diagnoses of which each alone is right."""
    command: str = "train"


REWARD = "--reward.use {rewards}:"
SFT = "--data.train {task}/%s.jsonl --data.prompt_key prompt --data.response_key answer"
FAULTS = {
    "constant_reward": Fault(words=REWARD + "constant", expected=("dead_reward",)),
    "reward_of_a_missing_form": Fault(words=REWARD + "misread", expected=("dead_reward",)),
    "reward_too_rare": Fault(words=REWARD + "rare", expected=("dead_reward", "equal_groups")),
    "temperature_0.01": Fault(
        words="--rollout.temperature 0.01 --algo.loss.entropy_coef 0",
        expected=("equal_groups", "same_samples", "other_weights"),
    ),
    "rate_x100": Fault(
        words="--actor.adam.lr 0.5",
        expected=("rate_too_high", "entropy_gone", "one_answer", "reward_lost", "empty_answers"),
    ),
    "rate_x100_no_clipping": Fault(
        words="--actor.adam.lr 0.5 --actor.max_norm 1e9 --train.inner_epochs 4",
        expected=("rate_too_high", "entropy_gone", "one_answer", "reward_lost", "all_clipped"),
    ),
    "rate_by_1000": Fault(words="--actor.adam.lr 5e-6", expected=("rate_too_low",)),
    "entropy_pushed_down": Fault(
        words="--algo.loss.entropy_coef 0 --actor.adam.lr 0.03 --train.inner_epochs 4",
        expected=("entropy_gone", "one_answer", "rate_too_high", "reward_lost"),
    ),
    "answers_too_short": Fault(
        words="--rollout.max_new_tokens 2 --reward.use {rewards}:misread",
        expected=("dead_reward", "cut_off"),
    ),
    "hackable_reward": Fault(
        words=REWARD + "sevens", expected=("reward_hacking", "one_answer", "cut_off")
    ),
    "reward_flipped": Fault(words=REWARD + "flipped", expected=("reward_hacking", "reward_lost")),
    "reward_is_noise": Fault(words=REWARD + "noise", expected=("one_answer", "entropy_gone")),
    "stale_at_a_high_rate": Fault(
        words="--rollout.max_staleness 4 --actor.adam.lr 0.1",
        expected=("other_weights", "rate_too_high", "entropy_gone", "one_answer", "reward_lost"),
    ),
    "all_groups_filtered": Fault(
        words="--rollout.filters zero_variance --rollout.max_refills 1 --train.max_empty_steps 60 "
        + REWARD
        + "rare",
        expected=("empty_steps", "nearly_all_dropped", "dead_reward"),
    ),
    "sft_rate_x100": Fault(
        command="sft",
        words=SFT % "train" + " --actor.adam.lr 1.0",
        expected=("loss_rises", "not_finite"),
    ),
    "sft_by_heart": Fault(
        command="sft",
        words=SFT % "few"
        + " --actor.adam.lr 1e-2 --train.epochs 60 --eval.every 10 --eval.data held_out={task}/test.jsonl",
        expected=("overfits",),
    ),
    "rm_of_random_labels": Fault(
        command="rm", words="--data.train {task}/random_pairs.jsonl", expected=("at_chance",)
    ),
    "dpo_of_random_labels": Fault(
        command="dpo", words="--data.train {task}/random_pairs.jsonl", expected=("at_chance",)
    ),
}
"""Fault by name."""

ESTIMATORS = ("reinforce_baseline", "rloo", "grpo", "dr_grpo", "group_norm")
HEALTHY = (
    *(("train", f"--algo.advantage.estimator {name}") for name in ESTIMATORS),
    ("train", "--actor.adam.lr 2e-3"),
    ("train", "--actor.adam.lr 1e-2"),
    ("train", "--algo.loss.entropy_coef 0"),
    ("train", "--algo.kl.coef 0.01"),
    ("train", "--algo.advantage.estimator gae --critic.adam.lr 5e-3"),
    ("train", "--rollout.max_staleness 1"),
    ("train", "--train.inner_epochs 2"),
    ("train", "--rollout.filters zero_variance"),
    ("train", "--rollout.batch_size 16 --rollout.n_samples_per_prompt 4"),
    ("train", "--rollout.max_new_tokens 8"),
    ("sft", SFT % "train" + " --actor.adam.lr 5e-3 --eval.data held_out={task}/test.jsonl"),
    ("rm", "--data.train {task}/pairs.jsonl"),
    ("dpo", "--data.train {task}/pairs.jsonl --actor.adam.lr 1e-3"),
)
"""Command and flags of runs in which nothing is wrong, each with several seeds."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=700.0, help="no run starts after so many")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each fault")
    parser.add_argument(
        "--healthy", type=int, default=100, help="seeds of each healthy run, at most"
    )
    parser.add_argument("--only", nargs="*", help="names of faults; unset: all")
    parser.add_argument(
        "--output", type=Path, help="folder of the runs, which are kept; unset: none"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(arguments.output or Path(temporary), time.monotonic() + arguments.seconds)
        names = list(FAULTS) if arguments.only is None else arguments.only
        bench.faults(names, range(1, arguments.seeds + 1))
        bench.healthy(range(1, arguments.healthy + 1))


class Bench:
    """Runs in a folder until a time, and what was found in them."""

    def __init__(self, folder: Path, until: float) -> None:
        self._folder, self._until = folder, until
        self._task = folder / "task"
        self._task.mkdir(parents=True, exist_ok=True)
        write_task(self._task, digits=3, hidden_size=32)
        (self._task / "rewards.py").write_text(REWARDS, encoding="utf-8")
        config = BASE.format(task=self._task, rewards=self._task / "rewards.py")
        (self._task / "train.toml").write_text(config, encoding="utf-8")
        write_rows(self._task)

    def faults(self, names: Sequence[str], seeds: Sequence[int]) -> None:
        """Run each fault and print the table of what was found."""
        print(
            "| fault | runs | found | found otherwise | missed | by |\n| --- | --- | --- | --- | --- | --- |"
        )
        for name in names:
            fault, counts, by = FAULTS[name], Counter[str](), Counter[str]()
            for seed in seeds:
                run = self._run(fault.command, fault.words, seed)
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

    def healthy(self, seeds: Sequence[int]) -> None:
        """Run the healthy ones and print how many were blamed, and by what."""
        counts, by, places = Counter[str](), Counter[str](), 0
        for seed in seeds:
            for command, words in HEALTHY:
                run = self._run(command, words, seed)
                if run is None:
                    continue
                if not has_learned(run):
                    counts["learned nothing"] += 1
                    print(
                        f"learned nothing: {command} {words}, seed {seed}: {', '.join(findings(run))}",
                        flush=True,
                    )
                    continue
                blamed = set()
                for found in looks(run):
                    blamed |= set(found)
                    places += 1
                counts["runs"] += 1
                counts["blamed"] += bool(blamed)
                by.update(blamed)
                if blamed:
                    print(
                        f"blamed: {command} {words}, seed {seed}: {', '.join(blamed)}", flush=True
                    )
        print(f"healthy: {dict(counts)}, looked at {places} times, by {dict(by)}")

    def _run(self, command: str, words: str, seed: int) -> Path | None:
        """Return the folder of a run; None: there is no time for it."""
        if time.monotonic() > self._until:
            return None
        run = self._folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        flags = words.format(task=self._task, rewards=self._task / "rewards.py").split()
        base = (
            ["-c", str(self._task / "train.toml")]
            if command == "train"
            else examples_words(self._task)
        )
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = rlhf([command, *base, "--output", str(run), "--seed", str(seed), *flags])
        if code == 2:
            raise SystemExit(f"{command} {words}: {said.getvalue()[-1500:]}")
        return run


def examples_words(task: Path) -> list[str]:
    """Return the flags that runs on examples share."""
    words = f"--model.path {task}/model --train.batch_size 16 --log.progress off --log.summary false --log.curve false"
    return [*words.split(), "--checkpoint.export", "false", "--runtime.local.threads", "1"]


def findings(run: Path) -> list[str]:
    """Return the names of the diagnoses that found something."""
    record = read_record(run, Problems())
    return list(diagnose(record, diagnoses_of(record)).found)


def looks(run: Path) -> Iterator[list[str]]:
    """Yield the findings of a run as it ended, and as if it had been killed after every tenth step."""
    yield findings(run)
    last = read_record(run, Problems()).metrics.last_step
    for step in range(LAST, last, LAST):
        with tempfile.TemporaryDirectory() as folder:
            cut = Path(folder)
            shutil.copy(run / "config.toml", cut)
            for name in ("metrics.jsonl", "samples.jsonl", "ledger.jsonl"):
                if (run / name).exists():
                    kept = [
                        line
                        for line in (run / name).open()
                        if line.strip() and json.loads(line)["step"] <= step
                    ]
                    (cut / name).write_text("".join(kept))
            yield findings(cut)


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


def write_rows(task: Path) -> None:
    """Write rows for runs on examples: few of them, and pairs whose better answer is right, or is random."""
    rows = [json.loads(line) for line in (task / "train.jsonl").open()]
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
