"""Random kills over all commands that can be gone on with, and over every kind of their processes.

    python benchmarks/random_kills.py [--kills 200] [--seed 0] [--kinds train,sft,ray] [--folder DIR]

Each kind of run is done once as a whole. Then, so many times: a kind, a moment, one of the processes that live then,
and SIGKILL or SIGSTOP for 20 s are drawn; the run is resumed until it is finished. Its metrics and weights, or what was
generated and measured, are compared with the whole run's, to the bit, where that is promised (not for several ranks,
which add in an order of their own). What is left is looked for: processes (by their TMPDIR, which every process of a
run has), and with them their ports; sockets and folders in it; shared memory that they had. Caches of compiled code are
kept on purpose, as are the logs of which a run says so. Prints one table, and exits with 1 if anything differs, fails
or is left. SIGINT and SIGTERM end what is under way, with all its processes; the table of what was done is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from marked_processes import marked, role, shared_memory
from told_to_end import ToldToEnd, kill_marked, raises_when_told_to_end

STOPPED_S = 20.0
ENDING_S = 15.0
"""Patience with what ends by itself after its parent."""
HANG_S = 600.0
ATTEMPTS = 4
"""Resumes of one run."""
TRIES = 5
"""Runs of which one has to be met by its signal."""
MISSED = "nobody: it had ended"
QUIET = "--log.progress off --log.summary false --log.tensorboard false --log.curve false"
ROLLOUTS = (
    "--model model --data rows.jsonl --rollout.batch_size 3 --rollout.n_samples_per_prompt 4 "
    "--rollout.max_new_tokens 4 --data.max_prompt_tokens 8 --checkpoint.every 2"
)
EVALUATED = "--eval.fraction 0.25 --eval.every 3"  # and so with a best checkpoint, too
LEARNED = f"--model model --train.batch_size 4 --train.epochs 3 --checkpoint.every 2 {EVALUATED}"
NO_PROGRESS = "--log.progress off"
"""All that a command without steps can leave out."""
ONE_THREAD = "--runtime.local.threads 1"
ENVIRONMENTS = (
    "--executor multi_turn --env echo_after_hint --rollout.max_length 32 "
    "--env.echo_after_hint.isolation process"
)
AGENTS = (
    "--executor endpoint --rollout.max_length 64 --rollout.endpoint.agent command "
    "--rollout.endpoint.command PYTHON AGENT --reward reward.py:score"
)
ON_RAY = "--runtime ray --backend torch --engine embedded --steps 6"
KINDS = {
    "train": f"train {ROLLOUTS} {ONE_THREAD} {EVALUATED} --steps 12 --reward reward.py:score",
    "environments": f"train {ROLLOUTS} {ONE_THREAD} --steps 8 {ENVIRONMENTS}",
    "agents": f"train {ROLLOUTS} {ONE_THREAD} --steps 4 {AGENTS}",
    "sft": f"sft {LEARNED} {ONE_THREAD} --data rows.jsonl",
    "dpo": f"dpo {LEARNED} {ONE_THREAD} --data pairs.jsonl",
    "rm": f"rm {LEARNED} {ONE_THREAD} --data pairs.jsonl",
    "prm": f"prm {LEARNED} {ONE_THREAD} --data steps.jsonl",
    "distill": f"distill {LEARNED} {ONE_THREAD} --data rows.jsonl --teacher.path teacher",
    "generate": "generate --model model --data rows.jsonl --rollout.max_new_tokens 64 "
    "--rollout.n_samples_per_prompt 8",
    "eval": "eval --model model --data rows.jsonl --reward reward.py:score --rollout.max_new_tokens 64 "
    "--eval.n_samples 8 --eval.temperatures 1.0",
    "ray": f"train {ROLLOUTS} --steps 4 --reward reward.py:score --runtime ray --backend deepspeed --engine vllm "
    "--engine.vllm.threads 1 --runtime.ray.ranks.policy 2",
    "ray_environments": f"train {ROLLOUTS} {ON_RAY} {ENVIRONMENTS} --runtime.ray.rollout_workers 1",
    "ray_agents": f"train {ROLLOUTS} {ON_RAY} {AGENTS}",
    "ray_worker_agents": f"train {ROLLOUTS} {ON_RAY} {AGENTS} --runtime.ray.rollout_workers 1",
}
NOT_TO_THE_BIT = ("ray",)
WRITTEN = {"generate": ("completions.jsonl",), "eval": ("episodes.jsonl", "summary.json")}
"""What a command without steps writes that has no times."""
REWARD = """
def score(response, row):
    return sum(a == b for a, b in zip(response, row["response"])) / 4 + response.count("1") / 10
"""
AGENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "0?"}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
text = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"] or ""
print(json.dumps({"reward": len(text) % 3}))
"""


def write_workspace(folder: Path) -> None:
    """Write models, data, a reward and an agent."""
    from rlhf_testing.tiny import write_tiny_model

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model", "teacher"):
        write_tiny_model(folder / name, hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}=", "response": f"{n:03d}"[::-1]} for n in range(0, 999, 37)]
    pairs = [{"prompt": row["prompt"], "chosen": row["response"], "rejected": "0?"} for row in rows]
    steps = [
        {"prompt": row["prompt"], "completions": ["1", "2"], "labels": [True, n % 2 == 0]}
        for n, row in enumerate(rows)
    ]
    for name, found in (("rows", rows), ("pairs", pairs), ("steps", steps)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n")
    (folder / "reward.py").write_text(REWARD)
    (folder / "agent.py").write_text(AGENT)


@dataclass
class Tally:
    """What came of the kills of one kind of run."""

    kills: int = 0
    victims: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    equal: int = 0
    differ: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Run:
    """A run in processes that can be found, with a folder of its own for temporary files."""

    def __init__(self, workspace: Path, kind: str, name: str) -> None:
        self.workspace, self.kind, self.name = workspace, kind, name
        self.output = workspace / name
        # Short: the path of a Unix socket has at most 107 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="rk-", dir="/tmp"))
        # Of all variables that a run's processes inherit, workers of rewards and environments get the usual ones alone.
        self.mark = "TMPDIR", str(self.temporary)
        self.shared: set[str] = set()

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        paths = {"PYTHON": sys.executable, "AGENT": str(self.workspace / "agent.py")}
        words = [paths.get(word, word) for word in KINDS[self.kind].split()]
        quiet = NO_PROGRESS if self.kind in WRITTEN else QUIET
        words = [*_without(words, more), *quiet.split(), "--output", self.name, *more]
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(self.workspace / "compiled")}
        variables = {"OMP_NUM_THREADS": "1", **dict([self.mark]), **caches}
        with (self.workspace / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "rlhf_cli", *words],
                cwd=self.workspace,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of the process, and of all that it started, and note their shared memory."""
        deadline = time.monotonic() + HANG_S
        while process.poll() is None and time.monotonic() < deadline:
            self.shared |= shared_memory(marked(*self.mark))
            time.sleep(0.5)
        if process.poll() is None:
            process.kill()
            process.wait()
            return -999
        return process.returncode

    def left(self) -> list[str]:
        """Return what is there still, and remove it."""
        deadline = time.monotonic() + ENDING_S
        while (alive := marked(*self.mark)) and time.monotonic() < deadline:
            time.sleep(0.2)
        found = [f"process {role(pid, 0)}" for pid in alive]
        found += [path for path in sorted(self.shared) if os.path.exists(path)]
        said = (self.workspace / f"{self.name}.log").read_text(errors="replace")
        found += [
            str(path)
            for path in sorted(self.temporary.glob("*"))
            if f"logs of the failed processes are in {path}" not in said
        ]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        self.shared.clear()
        return found

    @contextmanager
    def ending(self) -> Iterator[Run]:
        """Return a context that removes the folder of temporary files at its end, and, where it is left by an error or
        because the benchmark was told to end, kills the run's processes and removes their shared memory."""
        try:
            yield self
        except BaseException:
            self.shared |= shared_memory(marked(*self.mark))
            kill_marked(*self.mark)
            for path in self.shared:
                Path(path).unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def result(self) -> tuple[object, object]:
        """Return metrics without times, and digests of the weights; or what was written."""
        if self.kind in WRITTEN:
            return [(self.output / name).read_text() for name in WRITTEN[self.kind]], ()
        lines = map(json.loads, (self.output / "metrics.jsonl").read_text().splitlines())
        metrics = [
            {k: v for k, v in line.items() if k not in ("time_s", "timing")} for line in lines
        ]
        files = sorted((self.output / "model").glob("*.safetensors"))
        return metrics, [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]

    def how_to_resume(self) -> tuple[str, ...]:
        """Return what the command is given to go on with the folder; an evaluation goes on by itself."""
        from rlhf_core.storage.run_folder import RunFolder

        if self.kind == "eval" or not self.output.exists():
            return ()
        is_lost = self.kind not in WRITTEN and RunFolder(self.output).no_checkpoint()
        return ("--resume", "restart" if is_lost else "auto")


def _without(words: list[str], others: Sequence[str]) -> list[str]:
    """Return the words of a command without the flags, and their values, that ``others`` give too."""
    kept, leaves_out = [], False
    for word in words:
        if word.startswith("--"):
            leaves_out = word in others
        if not leaves_out:
            kept.append(word)
    return kept


def kill_one(
    run: Run, process: subprocess.Popen[bytes], draw: random.Random, after_s: float
) -> str:
    """Wait, and send a signal to one of the run's processes; return whose process it was, and the signal, or ``MISSED``
    where there was none any more."""
    begun = time.monotonic()
    while time.monotonic() - begun < after_s and process.poll() is None:
        time.sleep(0.02)
    alive = marked(*run.mark)
    run.shared |= shared_memory(alive)
    if not alive:
        return MISSED
    by_role: dict[str, list[int]] = {}
    for pid in alive:
        by_role.setdefault(role(pid, process.pid), []).append(pid)
    # A role first: otherwise nearly all victims of Ray would be its idle workers.
    whose = draw.choice(sorted(by_role))
    victim = draw.choice(by_role[whose])
    stops = draw.random() < 0.25
    try:
        os.kill(victim, signal.SIGSTOP if stops else signal.SIGKILL)
        if stops:
            time.sleep(STOPPED_S)
            os.kill(victim, signal.SIGCONT)
    except ProcessLookupError:
        return MISSED
    return f"{whose} {'STOP' if stops else 'KILL'}"


def try_once(
    workspace: Path, kind: str, name: str, draw: random.Random, whole: Whole, tally: Tally
) -> bool:
    """Do one run to its end, and note what came of it. Return whether a signal met one of its processes.

    One that ended before its moment tells how long a run takes now, for machines are not always as busy.
    """
    with Run(workspace, kind, name).ending() as run:
        return _try_once(run, draw, whole, tally)


def _try_once(run: Run, draw: random.Random, whole: Whole, tally: Tally) -> bool:
    begun, kind = time.monotonic(), run.kind
    process = run.start()
    victim = kill_one(run, process, draw, draw.uniform(0.2, 1.0) * whole.seconds)
    tally.victims[victim] += 1
    tally.kills += victim != MISSED
    code = run.finish(process)
    if victim == MISSED:
        whole.seconds = time.monotonic() - begun
    tally.left += [f"{run.name} ({victim}): {path}" for path in run.left()]
    for _ in range(ATTEMPTS):
        if code == 0:
            break
        tally.resumed += 1
        code = run.finish(run.start(*run.how_to_resume()))
        tally.left += [f"{run.name} resumed: {path}" for path in run.left()]
    if code != 0:
        tally.failed.append(f"{run.name} ({victim}): exit code {code}, see {run.name}.log")
    elif kind not in NOT_TO_THE_BIT and run.result() != whole.result:
        tally.differ.append(f"{run.name} ({victim})")
    else:
        tally.equal += victim != MISSED and kind not in NOT_TO_THE_BIT
    if code == 0:
        shutil.rmtree(run.output, ignore_errors=True)
    return victim != MISSED


@dataclass
class Whole:
    """A run that was left alone."""

    seconds: float
    """How long the last one took."""
    result: tuple[object, object]


def whole_run(workspace: Path, kind: str, tally: Tally) -> Whole | None:
    with Run(workspace, kind, f"{kind}-whole").ending() as run:
        begun = time.monotonic()
        code = run.finish(run.start())
        seconds = time.monotonic() - begun
        tally.left += [f"{run.name}: {path}" for path in run.left()]
        if code != 0:
            tally.failed.append(f"{run.name}: exit code {code}, see {run.name}.log")
            return None
        return Whole(seconds, run.result())


def table(tallies: dict[str, Tally]) -> str:
    """Return the results as text."""
    lines = [
        f"{'kind':18}{'kills':>6}{'resumed':>9}{'equal':>7}{'differ':>8}{'failed':>8}{'left':>6}  victims"
    ]
    for kind, tally in tallies.items():
        victims = ", ".join(f"{name} x{count}" for name, count in sorted(tally.victims.items()))
        equal = "-" if kind in NOT_TO_THE_BIT else str(tally.equal)
        lines.append(
            f"{kind:18}{tally.kills:>6}{tally.resumed:>9}{equal:>7}{len(tally.differ):>8}{len(tally.failed):>8}"
            f"{len(tally.left):>6}  {victims}"
        )
    for tally in tallies.values():
        lines += [
            f"  {what}: {text}"
            for what in ("differ", "failed", "left")
            for text in getattr(tally, what)
        ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="begin no further kill after so many"
    )
    options = parser.parse_args()
    workspace = options.folder or Path(tempfile.mkdtemp(prefix="random-kills-"))
    workspace = workspace.resolve()
    tallies = {kind: Tally() for kind in options.kinds.split(",")}
    code = 0
    try:
        with raises_when_told_to_end():
            write_workspace(workspace)
            kill_many(workspace, tallies, options)
    except ToldToEnd as told:
        code = told.exit_code
        print(f"ended by {told}", file=sys.stderr)
    print(
        f"seed {options.seed}, {sum(t.kills for t in tallies.values())} kills, runs in {workspace}"
    )
    print(table(tallies))
    return code or int(any(t.differ or t.failed or t.left for t in tallies.values()))


def kill_many(workspace: Path, tallies: dict[str, Tally], options: argparse.Namespace) -> None:
    """Do as many kills as the options say, one kind of run after the other, and note what came of them."""
    draw, begun, kinds = random.Random(options.seed), time.monotonic(), list(tallies)
    wholes: dict[str, Whole | None] = {}
    for number in range(options.kills):
        kind = kinds[number % len(kinds)]
        own = random.Random(draw.random())
        if time.monotonic() - begun > 60 * options.minutes:
            break
        if kind not in wholes:
            wholes[kind] = whole_run(workspace, kind, tallies[kind])
        if (whole := wholes[kind]) is not None:
            for again in range(TRIES):
                name = f"{kind}-{number}-{again}"
                if try_once(workspace, kind, name, own, whole, tallies[kind]):
                    break
            print(f"{number} {kind} {tallies[kind]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
