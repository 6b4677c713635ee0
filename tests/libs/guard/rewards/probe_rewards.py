"""A plugin with one reward that misbehaves in the way that its option says, at samples whose row says ``bad``."""

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

from rlhf_core import Component, Config, hookimpl
from rlhf_core.contracts import RewardResult


class ProbeConfig(Config):
    behavior: str = "score"
    file: str = ""

    def needed_by_options(self):
        return frozenset({"credits_tokens"}) if self.behavior == "places" else frozenset()


class Probe:
    def __init__(self, config):
        self.config = config
        if config.behavior == "cannot_be_built":
            raise LookupError("no such thing")

    async def score(self, requests):
        bad = [request for request in requests if request.row.get("bad")]
        return await getattr(self, self.config.behavior)(requests, bad)

    async def score_all(self, requests):
        return [
            RewardResult(reward=len(r.response), metrics={"pid": os.getpid()}) for r in requests
        ]

    async def good(self, requests, bad):
        return await self.score_all(requests)

    async def counts_samples(self, requests, bad):
        return [RewardResult(reward=float(len(requests))) for _ in requests]

    async def echoes_metrics(self, requests, bad):
        return [RewardResult(reward=1.0, metrics=request.row["metrics"]) for request in requests]

    async def raises(self, requests, bad):
        if bad:
            raise ZeroDivisionError("a sample is bad")
        return await self.score_all(requests)

    async def returns_exceptions(self, requests, bad):
        return [
            ValueError("only this one") if request in bad else RewardResult(reward=1.0)
            for request in requests
        ]

    async def too_short(self, requests, bad):
        return (await self.score_all(requests))[: -1 if bad else None]

    async def writes_to_its_channel(self, requests, bad):
        """To every socket of the process: the last bad row says what."""
        for request in bad:
            for name in os.listdir("/proc/self/fd"):
                # The listing itself was open when it was made.
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                        os.write(int(name), request.row["bad"].encode())
        return await self.score_all(requests)

    async def sleeps(self, requests, bad):
        if bad:
            if self.config.file:
                Path(self.config.file).touch()
            time.sleep(1000)
        return await self.score_all(requests)

    async def awaits_forever(self, requests, bad):
        if bad:
            await asyncio.Event().wait()
        return await self.score_all(requests)

    async def exits(self, requests, bad):
        if bad:
            print("last words")
            os._exit(7)
        return await self.score_all(requests)

    async def exits_in_a_task(self, requests, bad):
        async def leave():
            sys.exit(3)

        if bad:
            await asyncio.create_task(leave())
        return await self.score_all(requests)

    async def leaves_children(self, requests, bad):
        """Starts a child, a detached one and a forked one, writes their pids, and hangs."""
        nap = [sys.executable, "-c", "import time; time.sleep(1000)"]
        pids = [
            subprocess.Popen(nap).pid,
            subprocess.Popen(nap, start_new_session=True).pid,
        ]
        if (forked := os.fork()) == 0:
            time.sleep(1000)
        # Whole or not there: a test reads it as soon as it is.
        unfinished = Path(self.config.file).with_suffix(".unfinished")
        unfinished.write_text(" ".join(map(str, [os.getpid(), *pids, forked])))
        unfinished.rename(self.config.file)
        if bad:
            time.sleep(1000)
        return await self.score_all(requests)

    async def tells_variables(self, requests, bad):
        """Raises for a bad row, whose value is the name of a variable; writes down the names of all."""
        Path(self.config.file).write_text(" ".join(os.environ))
        for request in bad:
            os.environ[request.row["bad"]]
        return await self.score_all(requests)

    async def forks(self, requests, bad):
        """Both processes return; only one of them may go on as the worker."""
        os.fork()
        return await self.score_all(requests)

    async def places(self, requests, bad):
        """Puts a reward of 1 in two parts, as the row says."""
        return [
            RewardResult(reward=1.0, step_rewards=request.row.get("parts", ()))
            for request in requests
        ]

    places_undeclared = places

    async def alters_rows(self, requests, bad):
        for request in requests:
            request.row["nested"]["list"].append(len(request.row["nested"]["list"]))
        return [RewardResult(reward=len(request.row["nested"]["list"])) for request in requests]


@hookimpl
def rlhf_rewards():
    return [Component(name="probe", config=ProbeConfig, factory="probe_rewards:Probe")]
