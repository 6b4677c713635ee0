"""Healthy runs of random configurations, of which neither ``rlhf audit`` nor ``rlhf doctor`` may blame one.

    PYTHONPATH=. python benchmarks/healthy_runs.py --seed 3 --runs 200

Algorithms and their options are those that the tests of random runs draw (``tests/integration/random_options.py``), on
top of a family, a dtype, sampling, turns, an adapter, epochs, one step ahead, and how the engine computes. The audit
looks at the first step, with the model that the run began with. Some runs are exported and go on for one step, which
is looked at with the exported weights. With ``--steps`` of 20 or more the doctor looks at the run as it ended
and as if it had been killed after every tenth step; a run counts for it if its reward rose. A run that rlhf refuses or
ends is drawn anew.
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
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from audits import FAMILIES, TURNS, write_tasks
from diagnoses_runs import has_learned, verdicts_of
from tests.integration.random_options import Options, accepted, drawn, neutral

from rlhf_cli.main import main as rlhf
from rlhf_core import ConfigError
from rlhf_plugin_lab.audit.command import main as rlhf_audit
from rlhf_plugin_lab.doctor.record import FEWEST
from rlhf_plugin_lab.recorded.options import read_options
from rlhf_plugin_lab.recorded.problems import Problems

GOING_ON = 0.3
"""Part of the runs that go on for a step with exported weights, which takes as long again."""
REWARD = '''\
def score(prompts, responses, **_):
    """Share of the prompt's characters that are in the answer: one text for all prompts does not get it in full."""
    return [len(set(each) & set(prompt)) / len(set(prompt)) for prompt, each in zip(prompts, responses)]
'''
KINDS = {
    "family": "",
    "dtype": "model.dtype",
    "executor": "rollout.executor",
    "adapter": "actor.adapter",
    "optimizer": "actor.optim",
    "estimator": "algo.advantage.estimator",
    "loss": "algo.loss.policy",
    "correction": "algo.correction.kind",
    "truncation": "",
    "inner epochs": "train.inner_epochs",
    "versions ahead": "rollout.max_staleness",
    "engine": "engine.embedded.decode",
}
"""Column of the table -> the option whose values are its rows; empty: it is made of several."""


@dataclass(slots=True)
class Count:
    """Looks at runs of one kind, and runs that were blamed."""

    runs: int = 0
    audits: int = 0
    blamed_by_audit: int = 0
    learned: int = 0
    blamed_by_doctor: int = 0


@dataclass(slots=True)
class Looks:
    """What was seen of one run."""

    kinds: dict[str, str]
    audits: int = 0
    blamed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    learned: bool = False
    places: int = 0
    findings: set[str] = field(default_factory=set)


def write_task(base: Path, seed: int) -> None:
    """Write what the runs need: models, an adapter, a reward, rows and held-out ones."""
    write_tasks(base, seed)
    (base / "digits.py").write_text(REWARD)
    rows = (base / "rows.jsonl").read_text().splitlines(keepends=True)
    (base / "rows.jsonl").write_text("".join(rows[:48]))
    (base / "held.jsonl").write_text("".join(rows[48:]))


def options_of(draw: random.Random, base: Path, steps: int) -> tuple[list[str], str, Path | None]:
    """Return the flags of a run, its family, and the adapter that it begins with."""
    family = draw.choice(FAMILIES)
    words = f"""--model.path {base}/{family} --data.train {base}/rows.jsonl --reward.use {base}/digits.py:score
        --rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 8
        --eval.data held_out={base}/held.jsonl --eval.every 10 --eval.max_samples 8
        --train.inner_epochs {draw.choice((1, 1, 2, 3))} --rollout.temperature {draw.uniform(0.5, 1.5):.3f}
        --engine embedded --runtime local --backend torch --runtime.local.threads 1
        --observers.use token_files --observers.token_files.every {steps} --log.samples 16 --log.progress off
        --log.summary false --log.tensorboard false --log.curve false""".split()
    adapter = base / "adapter" if family == "qwen3" and draw.random() < 0.5 else None
    if adapter is not None:
        words += ["--actor.adapter", "lora", "--actor.lora.init_from", str(adapter)]
    if draw.random() < 0.3:
        words += TURNS.split()
    if draw.random() < 0.3:
        words += ["--model.dtype", "bfloat16"]
    groups: list[Options] = []
    for name, values in (("top_p", (0.8, 0.95)), ("top_k", (3, 20)), ("min_p", (0.02, 0.1))):
        value = (
            str(draw.choice(values))
            if draw.random() < 0.3
            else {"top_p": "1", "top_k": "0", "min_p": "0"}[name]
        )
        groups.append({f"rollout.{name}": value})
    if draw.random() < 0.3:
        overlap = draw.choice(("always", "never"))
        groups += [{"rollout.max_staleness": "1"}, {"engine.embedded.overlap": overlap}]
    own = [
        each
        for each in drawn(draw.randrange(10**6))
        if not any(name.endswith(".lr") for name in each)
    ]
    ways = [{name: value} for name, value in neutral(draw).items()]
    groups += [*own, *ways, {"actor.adam.lr": draw.choice(("1e-3", "3e-3"))}]
    # A correction has the sampler's log-probs already, and then refuses this; so it comes last.
    groups += [{"algo.loss.old_logprobs": "recompute"}, {"rollout.compared_share": "1"}]
    words += ["--seed", str(draw.randrange(10**6))]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return accepted(words, groups), family, adapter


def train(words: Sequence[str], run: Path, *more: str) -> str:
    """Train, and return what was said if it failed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = rlhf(["train", *words, "--output", str(run), *more])
    if not code:
        return ""
    errors = [line for line in said.getvalue().splitlines() if line.startswith("error")]
    return (errors or [f"it ended with {code}"])[-1]


def kinds_of(run: Path, family: str) -> dict[str, str]:
    """Return what a run is, by the options that it was resolved to."""
    values = read_options(run / "config.toml", Problems()).values
    off = {"rollout.top_k": ("0", "-1"), "rollout.top_p": ("1.0",), "rollout.min_p": ("0.0",)}
    cut = [name.rpartition(".")[2] for name, none in off.items() if values.get(name) not in none]
    made = {"family": family, "truncation": " ".join(cut) or "none"}
    return {kind: made.get(kind) or values.get(name, "default") for kind, name in KINDS.items()}


def audit(seen: Looks, run: Path, *options: str) -> None:
    """Look at a step of a run with the audit."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            rlhf_audit([str(run), "--json", *options])
    except ConfigError as error:
        seen.refused.append(str(error))
        return
    seen.audits += 1
    wrong = [each for each in json.loads(said.getvalue()) if each["gap"] > each["allowed"]]
    seen.blamed += [f"{' '.join(options)}: {each}" for each in wrong]


def looked_at(draw: random.Random, base: Path, steps: int) -> tuple[Looks | str, list[str]]:
    """Return what was seen of one run, or why there is none, and its flags."""
    words, family, adapter = options_of(draw, base, steps)
    run = base / "run"
    shutil.rmtree(run, ignore_errors=True)
    failed = train(words, run, "--train.steps", str(steps))
    if failed:
        return failed, words
    seen = Looks(kinds_of(run, family))
    audit(seen, run, *(("--model", str(adapter)) if adapter else ()))
    if draw.random() < GOING_ON:
        weights = base / "weights"
        shutil.rmtree(weights, ignore_errors=True)
        shutil.move(run / "model", weights)
        failed = train(words, run, "--train.steps", str(steps + 1), "--resume", "auto")
        if failed:
            return failed, words
        audit(seen, run, "--step", str(steps + 1), "--model", str(weights))
    seen.learned = steps >= FEWEST and has_learned(run)
    if seen.learned:
        for verdict in verdicts_of(run):
            seen.places += 1
            seen.findings |= set(verdict.found)
    return seen, words


def table(all_seen: Sequence[Looks]) -> None:
    """Print how many runs there were of each kind, and how many of them were blamed."""
    counts: dict[tuple[str, str], Count] = defaultdict(Count)
    for seen in all_seen:
        for at in [*seen.kinds.items(), ("all", "")]:
            count = counts[at]
            count.runs += 1
            count.audits += seen.audits
            count.blamed_by_audit += bool(seen.blamed)
            count.learned += seen.learned
            count.blamed_by_doctor += bool(seen.findings)
    print("| kind | value | runs | audits | blamed by audit | reward rose | blamed by doctor |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    order = [*KINDS, "all"]
    for (kind, value), each in sorted(
        counts.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
    ):
        print(
            f"| {kind} | {value} | {each.runs} | {each.audits} | {each.blamed_by_audit} | {each.learned} | "
            f"{each.blamed_by_doctor} |"
        )


def main() -> None:
    own = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--runs", type=int, default=200)
    own.add_argument("--steps", type=int, default=1, help="steps of each run; one more is audited")
    own.add_argument("--seconds", type=float, default=3600.0, help="no run starts after so many")
    given = own.parse_args()
    began, draw, failed = time.monotonic(), random.Random(given.seed), Counter[str]()
    all_seen: list[Looks] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_task(base, given.seed)
        while len(all_seen) < given.runs and time.monotonic() - began < given.seconds:
            seen, words = looked_at(draw, base, given.steps)
            if isinstance(seen, str):
                failed[seen[:160]] += 1
                print(f"drawn anew: {seen}\n    {' '.join(words)}", flush=True)
                continue
            all_seen.append(seen)
            print(f"{len(all_seen)}: {time.monotonic() - began:.0f} s", flush=True)
            for what in (*seen.blamed, *sorted(seen.findings), *seen.refused):
                print(f"{len(all_seen)}: {what}\n    {' '.join(words)}", flush=True)
    table(all_seen)
    places = sum(each.places for each in all_seen)
    print(
        f"seed {given.seed}: {len(all_seen)} runs, {time.monotonic() - began:.0f} s, doctor looked {places} times"
    )
    print(json.dumps(failed, indent=1))


if __name__ == "__main__":
    main()
