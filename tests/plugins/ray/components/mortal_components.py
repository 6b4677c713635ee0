"""A plugin for the tests: engine, backend and executor whose processes get a SIGKILL at a moment of the choice.

The folder MORTAL_FOLDER has a file ``plan``, one death a line: ``VICTIM MOMENT COUNT``, as in ``worker rank.train 2``:
kill a rollout worker when the rank begins its second training step. Lines come true one after the other, each once in
all processes together. What was killed, and when, is then in ``killed-LINE``.
"""

import json
import os
import signal
import time
from pathlib import Path

from rlhf_core import Component, hookimpl
from rlhf_plugin_agents.single_turn import SingleTurn
from rlhf_plugin_algorithms.advantages.reinforce_baseline import (
    ReinforceBaseline,
    ReinforceBaselineConfig,
)
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.torch_backend import TorchBackend

_seen = {}


def enter(kind):
    """Let this process be found as a victim."""
    (Path(os.environ["MORTAL_FOLDER"]) / f"{kind}-{os.getpid()}").touch()


def moment(name):
    """Do the deed if the plan says so."""
    folder = Path(os.environ["MORTAL_FOLDER"])
    for line, words in enumerate((folder / "plan").read_text().splitlines()):
        if not (folder / f"killed-{line}").exists():
            victim, when, count = words.split()
            break
    else:
        return
    if when != name:
        return
    _seen[line] = _seen.get(line, 0) + 1
    if _seen[line] < int(count):
        return
    pid = _alive(folder, victim)
    if pid is None:
        return
    try:
        with (folder / f"killed-{line}").open("x") as file:
            json.dump({"pid": pid, "time": time.time()}, file)
    except FileExistsError:
        return  # another process was first
    os.kill(pid, signal.SIGKILL)


def _alive(folder, kind):
    """This process if it is of that kind, else the newest."""
    pids = {int(path.name.rpartition("-")[2]): path for path in folder.glob(f"{kind}-*")}
    if os.getpid() in pids:
        return os.getpid()
    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    return max(alive, key=lambda pid: pids[pid].stat().st_mtime_ns, default=None)


class MortalEngine(EmbeddedEngine):
    def __init__(self, config):
        super().__init__(config)
        enter("engine")

    async def generate(self, request):
        moment("engine.generate")
        return await super().generate(request)

    async def update_weights(self, version, source):
        await super().update_weights(version, Followed(source) if version else source)


class Followed:
    """Weights of an update, in whose middle a process may die."""

    def __init__(self, source):
        self._source = source

    def module(self):
        return self._source.module()

    def buckets(self):
        for bucket in self._source.buckets():
            yield bucket
            moment("engine.update")


class MortalBackend(TorchBackend):
    def __init__(self, config):
        super().__init__(config)
        self._has_trained = False
        enter("rank")

    def train_step(self, batch, plan):
        moment("rank.train")
        self._has_trained = True
        return super().train_step(batch, plan)

    def buckets(self):
        for bucket in super().buckets():
            yield bucket
            if self._has_trained:
                moment("rank.send")


class MortalExecutor(SingleTurn):
    async def run(self, task, samples, context):
        enter("worker")  # only now: the driver builds one, too, and does not use it
        return await super().run(task, samples, context)


class MortalEstimator(ReinforceBaseline):
    def __init__(self, config):
        super().__init__(config)
        self._has_entered = False

    def __call__(self, batch):
        if not self._has_entered:
            self._has_entered = True
            enter("learner")  # only now: the driver builds one, too, and does not use it
        moment("learner.estimate")
        return super().__call__(batch)


@hookimpl
def rlhf_advantage_estimators():
    return [
        Component(
            name="mortal_baseline",
            config=ReinforceBaselineConfig,
            factory="mortal_components:MortalEstimator",
            needs=frozenset({"group>=2"}),
        )
    ]


@hookimpl
def rlhf_engines():
    return [
        Component(
            name="mortal", config=EmbeddedEngineConfig, factory="mortal_components:MortalEngine"
        )
    ]


@hookimpl
def rlhf_train_backends():
    return [
        Component(
            name="mortal_torch",
            config=TorchBackendConfig,
            factory="mortal_components:MortalBackend",
        ),
        Component(
            name="mortal_deepspeed",
            config=DeepSpeedConfig,
            factory="mortal_ranks:MortalDeepSpeed",
            provides=frozenset({"several_ranks"}),
        ),
    ]


@hookimpl
def rlhf_rollout_executors():
    return [Component(name="mortal_turn", factory="mortal_components:MortalExecutor")]
