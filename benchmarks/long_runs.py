"""How memory, descriptors and threads of all processes of a long run grow.

    python benchmarks/long_runs.py [--quickstart 3000] [--isolated 300] [--folder DIR]

Runs so many steps of the quickstart's kind (single turns, a reward in a worker process) and of ``multi_turn`` with an
environment in worker processes, on a tiny model. Every few seconds the resident memory, open files and threads of each
process are read. Prints, by the process's role, the first and the last value of the second half of the steps, where
imports and caches are done with, and the slope of a line through that half, per 1 000 steps. What the export of the
model takes after the last step is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from marked_processes import marked, role, usage
from random_kills import Run, write_workspace

EVERY_S = 2.0
RUNS = {"quickstart": "train", "isolated": "environments"}
"""Name of each run, and whose words it has in ``random_kills.KINDS``."""

Series = dict[tuple[str, str], list[tuple[int, int]]]
"""(Role, measure) -> steps done, and the value of all processes of that role together."""


def steps_done(metrics: Path) -> int:
    """Return the number of steps in a run's records."""
    try:
        with metrics.open("rb") as file:
            return sum(b'"timing"' in line for line in file)
    except FileNotFoundError:
        return 0


def watch(workspace: Path, name: str, steps: int) -> Series:
    """Do a run and return what was read while it went on."""
    run = Run(workspace, RUNS[name], name)
    process = run.start("--steps", str(steps), "--checkpoint.every", str(max(1, steps // 10)))
    found: Series = defaultdict(list)
    while process.poll() is None:
        done = steps_done(run.output / "metrics.jsonl")
        together: dict[tuple[str, str], int] = defaultdict(int)
        for pid in marked(*run.mark):
            for measure, value in usage(pid).items():
                together[role(pid, process.pid), measure] += value
        for key, value in together.items():
            if done < steps:
                found[key].append((done, value))
        time.sleep(EVERY_S)
    print(f"{name}: exit code {process.returncode}, left: {run.left() or 'nothing'}", flush=True)
    return found


def rows(name: str, series: Series) -> list[str]:
    """Return a line of the table for each role and measure."""
    lines = []
    for (whose, measure), points in sorted(series.items()):
        half = [point for point in points if point[0] >= points[-1][0] / 2]
        if len({step for step, _ in half}) < 3:
            continue
        slope = statistics.linear_regression(*zip(*half, strict=True)).slope
        ends = f"{half[0][1]:>10}{half[-1][1]:>10}"
        lines.append(f"{name:12}{whose:16}{measure:13}{ends}{1000 * slope:>12.1f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quickstart", type=int, default=3000)
    parser.add_argument("--isolated", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    options = parser.parse_args()
    workspace = (options.folder or Path(tempfile.mkdtemp(prefix="long-runs-"))).resolve()
    write_workspace(workspace)
    lines = [f"{'run':12}{'process':16}{'measure':13}{'middle':>10}{'end':>10}{'per 1000':>12}"]
    for name in RUNS:
        lines += rows(name, watch(workspace, name, getattr(options, name)))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
