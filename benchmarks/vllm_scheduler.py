"""Milliseconds a step of vLLM's own scheduler and of ours, with many running requests that each write one token.

    python benchmarks/vllm_scheduler.py --requests 256 --logprobs --json scheduler.json

Nothing is computed: the same token comes back for every request, a step after it was asked for, as on a GPU.
``schedule`` decides what the next step is and gives it blocks of the KV cache, ``update`` takes the tokens of the one
before. Of several rounds the fastest counts, which other processes on the machine disturbed least.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from lone_scheduler import BLOCK, add_requests, computed, lone_scheduler, token_logprobs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from rlhf_plugin_vllm.names import PORTION_VARIABLE
from rlhf_plugin_vllm.scheduler import AsyncPortionScheduler
from rlhf_testing.tiny import write_tiny_model

BLOCKS, PROMPT = 40_000, tuple(range(5, 21))
TOKEN, FIRST = 7, 10
"""What all write; and steps that are not counted, since prompts are computed in them."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--logprobs", action="store_true", help="asked for with every token")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    os.environ[PORTION_VARIABLE] = "32"
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_model(Path(folder) / "model")
        for kind in (AsyncScheduler, AsyncPortionScheduler):
            rounds = [
                milliseconds(scheduler_of(kind, model, arguments), arguments)
                for _ in range(arguments.rounds)
            ]
            schedule, update = min(rounds, key=sum)
            rows.append({"scheduler": kind.__name__, "schedule_ms": schedule, "update_ms": update})
    print(f"{'':24}{'schedule':>10}{'update':>10}   ms a step of {arguments.requests} requests")
    for row in rows:
        print(f"{row['scheduler']:24}{row['schedule_ms']:>10.2f}{row['update_ms']:>10.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def scheduler_of(kind: Any, model: Path, arguments: argparse.Namespace) -> Any:
    """Return a scheduler with all requests waiting and blocks for all their tokens."""
    length = arguments.steps + FIRST + len(PROMPT) + BLOCK
    scheduler = lone_scheduler(
        kind,
        model,
        num_blocks=BLOCKS,
        max_requests=arguments.requests,
        max_tokens=arguments.requests * len(PROMPT),
        max_length=length,
        in_advance=True,  # as on a GPU
    )
    asked = 0 if arguments.logprobs else None  # of how many other tokens, too
    add_requests(scheduler, [length] * arguments.requests, PROMPT, logprobs=asked)
    return scheduler


def milliseconds(scheduler: Any, arguments: argparse.Namespace) -> tuple[float, float]:
    """Return what a step spends in ``schedule`` and in ``update_from_output``."""
    under_way: list[Any] = []
    logprobs = token_logprobs(arguments.requests, TOKEN) if arguments.logprobs else None
    spent = [0.0, 0.0]
    for step in range(FIRST + arguments.steps):
        if step == FIRST:
            spent = [0.0, 0.0]
        started = time.perf_counter()
        scheduled = scheduler.schedule()
        spent[0] += time.perf_counter() - started
        under_way.append((scheduled, computed(scheduled, TOKEN, logprobs)))
        if len(under_way) == 2:
            given = under_way.pop(0)
            started = time.perf_counter()
            scheduler.update_from_output(*given)
            spent[1] += time.perf_counter() - started
    assert len(scheduled.num_scheduled_tokens) == arguments.requests
    return spent[0] / arguments.steps * 1e3, spent[1] / arguments.steps * 1e3


if __name__ == "__main__":
    main()
