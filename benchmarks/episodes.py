"""Seconds and memory of very many episodes at once in one process: a trivial environment and an engine without a model.

    python benchmarks/episodes.py --episodes 16000 --turns 4 --rounds 5

All episodes of a round are in flight together: groups of 8, played by ``multi_turn`` through the runner that a run
uses, and packed into the columns of a batch. The engine answers after the event loop has gone around once, with 8
tokens; the environment does the same. Several rounds show whether memory grows: it should be that of one round. Time is
that of the wall, and of the process's CPU, on one core.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.contracts import (
    Action,
    Completion,
    GenerationRequest,
    Observation,
    RolloutContext,
    SamplingParams,
    StepResult,
    Stop,
    Task,
    Uid,
)
from rlhf_core.rng import sample_seed
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_testing.fakes import FakeRenderer
from rlhf_trainer.rollouts.episodes import EpisodeRunner

GROUP = 8
ANSWER = np.array([*range(100, 107), 2], dtype=np.int32)


class Answering:
    """Engine that gives the same answer to every request."""

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        await asyncio.sleep(0)
        return [
            Completion(
                token_ids=ANSWER,
                logprobs=np.zeros(len(ANSWER), dtype=np.float32),
                weight_version=np.zeros(len(ANSWER), dtype=np.int32),
                stop=Stop.EOS,
            )
            for _ in request.seeds
        ]


class Trivial:
    """Environment that counts turns."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation()

    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(0)
        done = action.turn == self._turns - 1
        return StepResult(observation=Observation(text="go on"), reward=0.5, done=done)

    async def close(self) -> None: ...


def resident_mib() -> float:
    """MiB of memory that this process alone has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return int(kib) / 1024


async def play_round(episodes: EpisodeRunner, tasks: list[Task]) -> int:
    """Play all groups at once, and return the number of rows."""

    async def play(task: Task) -> int:
        (finished,) = await episodes.score([await episodes.play(task)])
        assert finished.batch is not None
        return len(finished.batch)

    return sum(await asyncio.gather(*map(play, tasks)))


def measure(num_episodes: int, turns: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row of the table for each round."""
    runner = EpisodeRunner(
        executor=MultiTurn(MultiTurnConfig(max_turns=turns)),
        context=RolloutContext(
            engine=Answering(),
            renderer=FakeRenderer(),
            sampling=SamplingParams(max_new_tokens=16),
            max_length=4096,
            seed=lambda sample, turn: 0,
            environment=lambda task: Trivial(turns),
        ),
        seed_of=lambda task, sample, turn: sample_seed(0, task, sample, turn),
        score=None,
        samples_per_prompt=GROUP,
    )
    tasks = [
        Task(uid=Uid(0, prompt), prompt_ids=tuple(range(100, 132)))
        for prompt in range(num_episodes // GROUP)
    ]
    rows = []
    for number in range(1, rounds + 1):
        started, cpu = time.perf_counter(), time.process_time()
        count = asyncio.run(play_round(runner, tasks))
        seconds = time.perf_counter() - started
        busy = time.process_time() - cpu
        gc.collect()
        rows.append(
            {
                "round": number,
                "episodes": count,
                "seconds": round(seconds, 2),
                "cpu_s": round(busy, 2),
                "us_per_turn": round(1e6 * busy / (count * turns), 1),
                "mib_after": round(resident_mib(), 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=16_000)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    rows = measure(options.episodes, options.turns, options.rounds)
    if options.json:
        print(json.dumps(rows))
        return
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|" + "---:|" * len(names))
    for row in rows:
        print("| " + " | ".join(str(row[name]) for name in names) + " |")


if __name__ == "__main__":
    main()
