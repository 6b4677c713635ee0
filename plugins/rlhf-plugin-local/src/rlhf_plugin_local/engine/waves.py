"""Waves: waiting sequences that are admitted together, whose prompts one prefill pass computes."""

from __future__ import annotations

from collections import deque

from .batch import Batch
from .config import EmbeddedEngineConfig
from .resident.batch import ResidentBatch
from .sequence import Prompt, Sequence

MOST_READ = 16
"""Tokens whose keys one pass may read, for each token that it may compute: it copies the keys out of their pages."""


def next_wave(
    queue: deque[Sequence], batch: Batch | ResidentBatch, config: EmbeddedEngineConfig
) -> list[Sequence]:
    """Take from the queue what is to be admitted now; nothing while more should gather.

    A wave fits into the free slots and pages, and into ``prefill_tokens``; a longer prompt is a wave of its own.
    """
    free = batch.num_free
    # A prefill for each slot that falls free would cost as much as a step of the whole batch; so some gather first.
    enough = min(len(queue), max(1, batch.num_slots // 16))
    if not queue or (batch.active and free < enough):
        return []
    wave: list[Sequence] = []
    prompts: set[Prompt] = set()
    num_new = num_read = pages = 0
    while queue and len(wave) < free:
        prompt = queue[0].prompt
        if prompt not in prompts or not config.share_prefixes:
            num_new += batch.num_new(prompt)
            num_read += len(prompt.token_ids)
            most = config.prefill_tokens
            if wave and (num_new > most or num_read > MOST_READ * most):
                break
            prompts.add(prompt)
        pages += batch.most_pages(queue[0])
        if not batch.has_room(pages):
            break
        wave.append(queue.popleft())
    return wave
