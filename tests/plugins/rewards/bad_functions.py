"""Reward functions that go wrong at the sample whose row says ``bad``, each in its own way."""

import asyncio
import ctypes
import os
import resource
import sys
import threading
import time


def raises(response, bad):
    return 1 / 0 if bad else 1.0


def raises_base_exception(response, bad):
    if bad:
        raise KeyboardInterrupt
    return 1.0


def returns_none(response, bad):
    return None if bad else 1.0


def returns_nan(response, bad):
    return float("nan") if bad else 1.0


def returns_infinity(response, bad):
    return float("-inf") if bad else 1.0


def returns_huge(response, bad):
    return 1e300 if bad else 1.0


def returns_text(response, bad):
    return "1.0" if bad else 1.0


def returns_list(response, bad):
    return [1.0, 2.0] if bad else 1.0


def returns_generator(response, bad):
    return (x for x in [1.0]) if bad else 1.0


def returns_matrix(response, bad):
    import numpy as np

    return np.ones((2, 2)) if bad else 1.0


def returns_dict_without_reward(response, bad):
    return {"score": 1.0} if bad else {"reward": 1.0}


def returns_text_as_metric(response, bad):
    return {"reward": 1.0, "note": "fine" if bad else 0.0}


def returns_hostile_object(response, bad):
    class Hostile:
        def __repr__(self):
            raise RuntimeError("no repr")

    return Hostile() if bad else 1.0


def recurses(response, bad):
    return recurses(response, bad) if bad else 1.0


def exits(response, bad):
    if bad:
        sys.exit(3)
    return 1.0


async def async_raises(response, bad):
    await asyncio.sleep(0)
    if bad:
        raise LookupError("no such label")
    return 1.0


async def async_exits(response, bad):
    await asyncio.sleep(0)
    if bad:
        sys.exit(3)
    return 1.0


def allocates(response, bad):
    if bad:
        # As on a machine without that much memory.
        limit = 4 * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return len(bytearray(2**40))
    return 1.0


def batch_raises(responses, bad):
    if any(bad):
        raise ValueError("one of them is bad")
    return [1.0] * len(responses)


def batch_is_too_short(responses, bad):
    return [1.0] * (len(responses) - any(bad))


def batch_returns_number(responses, bad):
    return 1.0 if any(bad) else [1.0] * len(responses)


def batch_returns_none_inside(responses, bad):
    return [None if one else 1.0 for one in bad]


# Below are those that only a process of its own survives.


def sleeps(response, bad):
    if bad:
        time.sleep(1000)
    return 1.0


def loops_in_c(response, bad):
    """Holds the interpreter's lock: no thread or signal handler of that process gets to run."""
    if bad:
        import re

        re.fullmatch(r"(a+)+b", "a" * 64)
    return 1.0


def ignores_signals(response, bad):
    if bad:
        import signal

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        while True:
            time.sleep(1)
    return 1.0


def exits_hard(response, bad):
    if bad:
        os._exit(3)
    return 1.0


def crashes(response, bad):
    if bad:
        ctypes.string_at(0)
    return 1.0


def kills_its_group(response, bad):
    if bad:
        os.killpg(0, 9)
    return 1.0


def kills_its_parent(response, bad):
    if bad:
        os.kill(os.getppid(), 9)
        time.sleep(1000)
    return 1.0


def closes_everything(response, bad):
    if bad:
        os.closerange(0, 256)
        time.sleep(1000)
    return 1.0


# And these only look dangerous.


def forks_and_returns_twice(response, bad):
    if bad:
        os.fork()
    return 1.0


def starts_many_processes(response, bad):
    if bad:
        for _ in range(20):
            if os.fork() == 0:
                time.sleep(1000)
    return 1.0


def starts_a_thread(response, bad):
    if bad:
        threading.Thread(target=time.sleep, args=(1000,)).start()
    return 1.0


def prints_a_lot(response, bad):
    if bad:
        for _ in range(2000):
            print("x" * 10_000)
        print('{"call": 1, "reward": [99.0], "metrics": [null], "problems": {}}')
        os.write(1, b"\xff\xfe\n")
        print("\ud800 lone surrogate")
    return 1.0


def mutates_its_row(response, row, bad):
    row["bad"] = False
    row.clear()
    return 1.0
