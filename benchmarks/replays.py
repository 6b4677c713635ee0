"""Spans of runs that ``rlhf replay`` does again, and options that it changes, compared with whole runs by digest.

    python benchmarks/replays.py --seed 1
    python benchmarks/replays.py --seed 1 --kinds grpo lora --spans 4 --changes 0

A run of each kind leaves a checkpoint every fourth step, and is replayed over spans that the seed draws: one from the
run's beginning, one step alone, one between two checkpoints, one over several. A twin of the run with a checkpoint of
every step, which the replay never sees, says what weights and optimizer must be behind each step of the span.

A counterfactual changes an option from a step that the seed draws. The twin goes on from the step before with the same
option; behind each step whose samples are still of weights that both runs had, weights and optimizer must be the same,
and others than without the option. A step in which the option happens to change nothing is drawn again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from pathlib import Path

from replayed_runs import (
    EVERY,
    KINDS,
    STEPS,
    Change,
    changes,
    digests,
    first_difference,
    go_on,
    has_same_weights,
    run_rlhf,
    samples,
    train,
    write_task,
)

NOTHING = "the option changes nothing"


def spans_of(draw: random.Random, count: int) -> list[tuple[int, int]]:
    """Return first and last steps: of the beginning, of one step, between checkpoints, over several, then any."""
    single, after = draw.randint(EVERY + 1, STEPS), draw.randrange(EVERY, STEPS, EVERY)
    spans = [
        (1, draw.randint(2, STEPS)),
        (single, single),
        (after + 2, after + EVERY - 1),
        (draw.randint(EVERY + 1, 2 * EVERY), draw.randint(2 * EVERY + 1, STEPS)),
    ]
    while len(spans) < count:
        first = draw.choice([1, *range(EVERY + 1, STEPS + 1)])
        spans.append((first, draw.randint(first, STEPS)))
    return spans[:count]


def replay(run: Path, span: tuple[int, int], out: Path, words: list[str]) -> float:
    """Replay a span into a folder, and return the seconds it took."""
    started = time.perf_counter()
    first, last = map(str, span)
    run_rlhf(["replay", str(run), "--from", first, "--to", last, "--out", str(out), *words])
    return time.perf_counter() - started


def print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def show_spans(base: Path, draw: random.Random, kind: str, count: int) -> int:
    """Print a row for each span of a kind, and return how many are equal to the bit."""
    right = 0
    for first, last in spans_of(draw, count):
        try:
            seconds = replay(base / f"{kind}/run", (first, last), base / "out", [])
            other = first_difference(
                base / f"{kind}/twin", base / "out/original", range(first, last + 1)
            )
        except RuntimeError as error:
            seconds, other = 0.0, str(error)
        right += not other
        print_row(f"{first} to {last}", kind, other or "equal", f"{seconds:.1f}")
        shutil.rmtree(base / "out", ignore_errors=True)
    return right


def show_change(base: Path, draw: random.Random, change: Change) -> bool:
    """Print the row of a counterfactual, and return whether it equals the run that had the option from there."""
    started, tries = time.perf_counter(), 5
    other = NOTHING
    while other == NOTHING and tries:
        first = draw.randint(EVERY + 1, STEPS - 1)
        # With other groups dropped, later prompts move to other steps, which need samples that the run has not.
        last = first if change.kind == "filter" else min(first + 2, STEPS)
        compared, other = compare(base, change, first, last)
        tries -= 1
    option = " ".join(change.words).replace(f"{base}/", "")
    print_row(
        f"{first} to {last}",
        f"{change.kind}: {change.name}",
        f"`{option}`",
        compared,
        other or "equal",
        f"{time.perf_counter() - started:.1f}",
    )
    return not other


def compare(base: Path, change: Change, first: int, last: int) -> tuple[int, str]:
    """Return how many steps of a counterfactual can be compared, and what is not as it must be; empty: all is."""
    twin, out, resumed = base / change.kind / "twin", base / "out", base / "resumed"
    compared = 0
    try:
        replay(base / change.kind / "run", (first, last), out, change.words)
        go_on(base, change, twin, first - 1, resumed)
        compared = comparable_steps(change, twin, resumed, first, last)
        found = first_difference(resumed, out / "changed", range(first, first + compared))
        found = found or first_difference(twin, out / "original", range(first, last + 1))
        if not found and digests(resumed, first) == digests(twin, first):
            found = NOTHING
    except RuntimeError as error:
        found = str(error)
    for folder in (out, resumed):
        shutil.rmtree(folder, ignore_errors=True)
    return compared, found


def comparable_steps(change: Change, twin: Path, resumed: Path, first: int, last: int) -> int:
    """Return for how many steps from ``first`` on the run that has the option learns from samples of the weights, and
    so of the log-probs, that the run without it had. Pairs are always the same.

    Raises:
        RuntimeError: samples of the same weights differ.
    """
    if change.kind == "dpo":
        return last - first + 1
    step = first
    while step <= last:
        if step > first and not has_same_weights(twin, resumed, step - 1):
            break
        if change.kind != "filter" and samples(twin, step) != samples(resumed, step):
            raise RuntimeError(f"step {step} has other samples of the same weights")
        step += 1
    return step - first


def main() -> int:
    """Print two tables and their totals; return the exit code: 0 where all are equal."""
    own = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    own.add_argument("--spans", type=int, default=4, help="of each kind")
    own.add_argument("--changes", type=int, default=99, help="of all kinds together, at most")
    given = own.parse_args()
    draw, started = random.Random(given.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_task(base, given.seed)
        wanted = [each for each in changes(draw, base) if each.kind in given.kinds]
        wanted = wanted[: given.changes]
        for kind in given.kinds:
            for name, every in (("run", EVERY), ("twin", 1)):
                train(base, kind, base / kind / name, given.seed, every=every)
        print("| span | kind | weights and optimizer | seconds |\n| --- | --- | --- | --- |")
        equal = sum(show_spans(base, draw, kind, given.spans) for kind in given.kinds)
        if wanted:
            print(
                "\n| span | changed | option | steps compared | weights and optimizer | seconds |"
            )
            print("| --- | --- | --- | --- | --- | --- |")
        same = sum(show_change(base, draw, change) for change in wanted)
    spans = given.spans * len(given.kinds)
    print(
        f"seed {given.seed}: {equal} of {spans} spans and {same} of {len(wanted)} counterfactuals equal to the bit, "
        f"{time.perf_counter() - started:.0f} s"
    )
    return 0 if (equal, same) == (spans, len(wanted)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
