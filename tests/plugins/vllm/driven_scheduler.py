"""vLLM's own schedulers without its workers: a test says what would have been computed."""

from __future__ import annotations

from benchmarks import lone_scheduler

ROOM, TOO_FEW = 1000, 24
"""Blocks: for all requests of a test; for some of them, so that others give theirs up and start again."""


def kinds(in_advance):
    """(vLLM's own scheduler, ours), where a step is prepared while the one before is computed and where not."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from rlhf_plugin_vllm.scheduler import AsyncPortionScheduler, PortionScheduler

    pairs = ((Scheduler, PortionScheduler), (AsyncScheduler, AsyncPortionScheduler))
    return pairs[in_advance]


def real_scheduler(kind, folder, *, in_advance, num_blocks=ROOM):
    """A scheduler of vLLM's; by default there is room for all requests."""
    return lone_scheduler.lone_scheduler(
        kind,
        folder,
        num_blocks=num_blocks,
        max_requests=16,
        max_tokens=512,
        max_length=512,
        in_advance=in_advance,
    )


def add_requests(scheduler, lengths, prompt=range(3, 13), **more):
    """Add a request for each number of tokens to write, all with one prompt; log-probs are asked for."""
    lone_scheduler.add_requests(scheduler, lengths, prompt, **{"logprobs": 0, **more})


def computed(scheduled, token):
    """What a worker would return: the same token for every request, its log-prob the negative of it."""
    number = len(scheduled.num_scheduled_tokens)
    logprobs = lone_scheduler.token_logprobs(number, token) if number else None
    return lone_scheduler.computed(scheduled, token, logprobs)
