"""Microseconds of the driver's CPU per sample, and its memory, while 1 000 engines answer it through rollout workers.

    python benchmarks/controller.py --engines 1000 --prompts 512 --samples 8 --tokens 128 --json

The driver is the real one: pool of rollout workers, rollout source with its ledger, and the call of the learner, which
cuts the batch for ranks, each of which pulls its rows. The engines are made up: each sleeps, then answers with arrays
of the size of a real response. They live with their executors and rewards in a few processes, so that those and not
the driver bear their cost. Each length runs in a driver of its own, since a process does not give memory back.

Time is the process's CPU time, for wall time would count the engines' sleep: of the loop's own thread, and of all
threads, those of Ray's client included, less what they take while nothing happens (``idle``), which grows with the
seconds and not with the samples. Memory is what the driver alone has (RssAnon), at its highest after a step, less what
it had before the first.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray

from rlhf_core import Config
from rlhf_core.contracts import (
    Completion,
    ComponentRef,
    Learner,
    LearnOutcome,
    LearnRequest,
    Metric,
    RolloutContext,
    RolloutSpec,
    SamplingParams,
    Stop,
    Task,
    TrajectoryColumns,
    Uid,
)
from rlhf_core.rng import sample_seed
from rlhf_guard.rewards.panel import SampleScore
from rlhf_plugin_agents.single_turn import SingleTurn
from rlhf_plugin_ray.config import RayRuntimeConfig
from rlhf_plugin_ray.processes.process import ActorProcess
from rlhf_plugin_ray.processes.supervisor import Supervisor
from rlhf_plugin_ray.ranks.learner_actor import LearnerActor
from rlhf_plugin_ray.ranks.rank_actor import RankActor
from rlhf_plugin_ray.ranks.remote_learner import RemoteLearner
from rlhf_plugin_ray.ranks.role import SharedBatches
from rlhf_plugin_ray.rollouts.rollout_actor import RolloutActor
from rlhf_plugin_ray.rollouts.rollout_pool import RolloutPool
from rlhf_testing.fakes import FakeRenderer
from rlhf_trainer.durable.records import Ledger
from rlhf_trainer.rollouts.episodes import EpisodeRunner
from rlhf_trainer.rollouts.prompts import Cursor
from rlhf_trainer.rollouts.source import RolloutSource
from rlhf_trainer.rollouts.worker import GroupRunner, RolloutParts

GROWTH = (1, 10, 100)
PROMPT_TOKENS = 64
LATENCY_S = 0.05
IDLE_S = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2, help="that the engines live in")
    parser.add_argument("--prompts", type=int, default=512, help="a step")
    parser.add_argument("--samples", type=int, default=8, help="a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="of the shortest response")
    parser.add_argument("--ranks", type=int, default=8, help="that the batch is cut for")
    parser.add_argument("--steps", type=int, default=3, help="measured, after one that warms up")
    parser.add_argument(
        "--spread-s", type=float, default=0.0, help="engines answer after up to so much longer"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--growth", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.growth is not None:
        print("ONE " + json.dumps(one_length(arguments)), flush=True)
        return
    rows = [_in_its_own_process(growth) for growth in GROWTH]
    print(json.dumps({"lengths": rows}) if arguments.json else table(rows))


def _in_its_own_process(growth: int) -> dict[str, float]:
    command = [sys.executable, __file__, *sys.argv[1:], "--growth", str(growth)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("ONE "))
    result: dict[str, float] = json.loads(line.removeprefix("ONE "))
    return result


def one_length(arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="ctl") as folder:
        ray.init(
            address="local",
            num_cpus=arguments.processes,
            include_dashboard=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
        try:
            return asyncio.run(_steps(arguments))
        finally:
            ray.shutdown()


async def _steps(arguments: argparse.Namespace) -> dict[str, float]:
    tokens = arguments.tokens * arguments.growth
    supervisor = Supervisor()
    pool = _pool(arguments, tokens, supervisor)
    await pool.crew.start_all(arguments.processes)
    ranks = [ActorProcess(ray.remote(Rank).remote(), f"rank {n}") for n in range(arguments.ranks)]
    there = ActorProcess(ray.remote(FakeLearner).remote(ranks), "the learner")
    learner: Learner = RemoteLearner(there, {}, supervisor, 600.0)
    source = _source(arguments, pool, tokens)
    before, peak, cpu, own, wall = 0, 0, 0.0, 0.0, 0.0
    idle = await _idle_cpu()
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Ledger(Path(folder) / "ledger")) as ledger,
    ):
        cursor = Cursor(Prompts(), 0, epochs=None)
        for step in range(arguments.steps + 1):
            gc.collect()
            if step == 0:
                before = private_bytes()
            started, started_own = time.process_time(), time.thread_time()
            started_wall = time.perf_counter()
            num_bytes = await _step(arguments, source, cursor, ledger, step, learner)
            if step:
                cpu += time.process_time() - started
                own += time.thread_time() - started_own
                wall += time.perf_counter() - started_wall
            peak = max(peak, private_bytes())
    pool.crew.close()
    supervisor.close()
    samples = arguments.steps * arguments.prompts * arguments.samples
    return {
        "response_tokens": tokens,
        "samples_per_step": arguments.prompts * arguments.samples,
        "loop_us_per_sample": 1e6 * own / samples,
        "driver_us_per_sample": 1e6 * (cpu - idle * wall) / samples,
        "idle_cpu_share": idle,
        "step_s": wall / arguments.steps,
        "batch_mib": num_bytes / 2**20,
        "driver_private_mib": (peak - before) / 2**20,
    }


async def _idle_cpu() -> float:
    """CPU seconds of this process in a second in which nothing happens."""
    await asyncio.sleep(1.0)
    started = time.process_time()
    await asyncio.sleep(IDLE_S)
    return (time.process_time() - started) / IDLE_S


async def _step(
    arguments: argparse.Namespace,
    source: RolloutSource,
    cursor: Cursor,
    ledger: Ledger,
    step: int,
    learner: Learner,
) -> float:
    """Take a batch, hand it to the ranks, and return the bytes of its tokens."""
    rollouts = await source.take(
        step, cursor, arguments.prompts, max_refills=0, version=0, ledger=ledger
    )
    batch = rollouts.batch
    assert batch is not None
    request = LearnRequest(
        step=step,
        batch=batch,
        kl_coef=0.0,
        entropy_coef=0.0,
        supervised_taken=0,
        skipped_updates={},
    )
    outcome = await learner.learn(request)
    return outcome.metrics["bytes"].value()


class Dealing:
    """A learner that only hands each rank its rows."""

    def __init__(self, ranks: Sequence[ActorProcess]) -> None:
        self._ranks = ranks

    async def learn(self, request: LearnRequest) -> LearnOutcome:
        batch, ranks = request.batch, self._ranks
        parts = SharedBatches().cut(batch, ranks).parts
        read = [rank.actor.num_bytes.remote(part) for rank, part in zip(ranks, parts, strict=True)]
        num_bytes = float(sum(await asyncio.gather(*read)))
        return LearnOutcome(
            metrics={"bytes": Metric(num_bytes)},
            score_s=0.0,
            train_s=0.0,
            policy_changed=False,
            supervised_taken=0,
            skipped_updates={},
        )


class FakeLearner(LearnerActor):
    """The learner's process, with ``Dealing`` in it."""

    def __init__(self, ranks: Sequence[ActorProcess]) -> None:
        self._learner = Dealing(ranks)


def _source(arguments: argparse.Namespace, pool: RolloutPool, tokens: int) -> RolloutSource:
    episodes = EpisodeRunner(
        executor=SingleTurn(Config()),
        context=RolloutContext(
            engine=SimpleNamespace(),
            renderer=FakeRenderer(),
            sampling=SamplingParams(max_new_tokens=tokens),
            max_length=PROMPT_TOKENS + tokens,
            seed=_no_seed,
        ),
        seed_of=partial(sample_seed, 0),
        score=None,
        samples_per_prompt=arguments.samples,
    )
    return RolloutSource(episodes, groups=pool)


class Prompts:
    """A data set of one length."""

    def __len__(self) -> int:
        return 1 << 20

    def order(self, epoch: int, seed: int) -> Any:
        return np.arange(len(self))

    def task(self, index: int, epoch: int) -> Task:
        return Task(uid=Uid(epoch, index), prompt_ids=tuple(range(PROMPT_TOKENS)), row={})


class Rank:
    """Takes its rows as a rank of a role does."""

    assemble = RankActor.assemble

    async def num_bytes(self, rows: TrajectoryColumns) -> int:
        return rows.tokens.read().num_bytes


def _pool(arguments: argparse.Namespace, tokens: int, supervisor: Supervisor) -> RolloutPool:
    engines = arguments.engines // arguments.processes

    async def launch(index: int) -> ActorProcess:
        actor = ray.remote(Worker).options(num_cpus=1, max_concurrency=100_000)
        return ActorProcess(
            actor.remote(engines, tokens, arguments.spread_s), f"rollout worker {index}"
        )

    crew = SimpleNamespace(members=[], over=None, follow=lambda changed: None)
    pool = RolloutPool(
        launch,
        RolloutSpec(
            executor=ComponentRef(kind="rlhf_rollout_executors", name="single_turn"),
            tokenizer_path="",
        ),
        supervisor,
        RayRuntimeConfig(),
    )
    pool.connect(SimpleNamespace(crew=crew, version=0))
    return pool


class Worker(RolloutActor):
    """A rollout worker with the real executor, a reward, and its share of the engines."""

    def __init__(self, num_engines: int, tokens: int, spread_s: float) -> None:
        super().__init__()
        self._free = asyncio.Semaphore(num_engines)
        self._tokens = tokens
        self._spread_s = spread_s
        self._parts = RolloutParts(
            executor=SingleTurn(Config()), renderer=FakeRenderer(), environment=None
        )
        self._runner = GroupRunner(self._parts, LengthPanel())

    async def start(self, *arguments: Any) -> None: ...

    async def engines(self, *arguments: Any) -> None: ...

    def _engines_at(self, version: int) -> Any:
        return self

    async def generate(self, request: Any) -> list[Completion]:
        async with self._free:
            draw = np.random.Generator(np.random.Philox(request.seeds[0]))
            await asyncio.sleep(LATENCY_S + self._spread_s * draw.random())
            return [self._completion(seed) for seed in request.seeds]

    def _completion(self, seed: int) -> Completion:
        draw = np.random.Generator(np.random.Philox(seed))
        return Completion(
            token_ids=draw.integers(100, 1000, self._tokens, dtype=np.int32),
            logprobs=-draw.random(self._tokens, dtype=np.float32),
            weight_version=np.zeros(self._tokens, dtype=np.int32),
            stop=Stop.LENGTH,
        )


class LengthPanel:
    """A reward that costs nothing itself; its samples are decoded all the same."""

    async def score(self, requests: Any) -> list[SampleScore]:
        return [SampleScore(reward=float(len(request.response) % 2)) for request in requests]


def _no_seed(sample: int, turn: int) -> int:
    raise AssertionError("the episode runner gives each task its own seeds")


def private_bytes() -> int:
    """Memory that this process shares with no other: without the object store, which is mapped."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system's /proc/self/status has no RssAnon")


COLUMNS = {
    "tokens": "{response_tokens:8.0f}",
    "samples": "{samples_per_step:8.0f}",
    "loop us": "{loop_us_per_sample:8.1f}",
    "all us": "{driver_us_per_sample:8.1f}",
    "idle": "{idle_cpu_share:8.1%}",
    "step s": "{step_s:8.2f}",
    "batch MiB": "{batch_mib:10.1f}",
    "driver MiB": "{driver_private_mib:11.1f}",
}
"""Heading -> value; times are by sample."""


def table(rows: list[dict[str, float]]) -> str:
    form = " ".join(COLUMNS.values())
    lines = [form.format(**row) for row in rows]
    widths = [len(each.format(**rows[0])) for each in COLUMNS.values()]
    heading = " ".join(name.rjust(width) for name, width in zip(COLUMNS, widths, strict=True))
    return "\n".join([heading, *lines])


if __name__ == "__main__":
    main()
