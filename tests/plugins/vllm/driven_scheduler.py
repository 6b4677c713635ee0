"""vLLM's own schedulers without its workers: a test says what would have been computed."""

from __future__ import annotations

import numpy as np
from benchmarks import lone_scheduler


def real_scheduler(kind, folder, *, in_advance, num_blocks=1000):
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


def add_requests(scheduler, lengths, prompt=range(3, 13)):
    """Add a request for each number of tokens to write, all with one prompt."""
    lone_scheduler.add_requests(scheduler, lengths, prompt, logprobs=0)


def computed(scheduled, token):
    """What a worker would return: the same token for every request, its log-prob the negative of it."""
    from vllm.v1.outputs import LogprobsLists

    tokens = np.full((len(scheduled.num_scheduled_tokens), 1), token)
    ranks = np.ones(len(tokens), dtype=int)
    logprobs = LogprobsLists(tokens, -tokens.astype(np.float32), ranks)
    return lone_scheduler.computed(scheduled, token, logprobs if len(tokens) else None)
