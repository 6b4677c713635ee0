"""Randomness as a counter: every draw is a function of (run seed, stream, counters), never of global state.

So a resumed run draws what the uninterrupted one would have drawn, and nothing depends on the order of arrival.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from .batch.task import Task


def seed_of(run_seed: int, stream: str, *counters: int) -> int:
    """Return a 63-bit seed for a stream (``"sample"``, ``"data"``, ...) and any number of counters.

    Equal arguments give equal seeds on every machine and in every version of the libraries in use; it is the
    BLAKE2b hash of the arguments.
    """
    message = stream.encode() + b"\0" + struct.pack(f"<{len(counters) + 1}q", run_seed, *counters)
    digest = hashlib.blake2b(message, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def sample_seed(run_seed: int, task: Task, sample: int, turn: int) -> int:
    """Return the seed of a turn in training. A function at module level, which can be pickled for other processes."""
    return seed_of(run_seed, "sample", task.uid.epoch, task.uid.prompt, sample, turn)


def eval_seed(run_seed: int, temperature_index: int, task: Task, sample: int, turn: int) -> int:
    """Return the seed of a turn in evaluation, which is the same in every evaluation."""
    return seed_of(run_seed, "eval", temperature_index, task.uid.prompt, sample, turn)


def generator_of(run_seed: int, stream: str, *counters: int) -> np.random.Generator:
    """Return a NumPy generator (Philox) for a stream and its counters."""
    return np.random.Generator(np.random.Philox(seed_of(run_seed, stream, *counters)))
