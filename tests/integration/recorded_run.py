"""A small run that learns with the loop's own learner, and records all that it asks of engine, models and runtime.

The models answer by a function of the tokens alone, so that a step's record depends on its own options and data, and on
no step before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from tests.libs.trainer.loop.small_run import (
    Diary,
    SmallRun,
    WrittenEngine,
    WrittenRole,
    WrittenRuntime,
)

from rlhf_core.batch.metric import Metric
from rlhf_core.contracts import Placement
from rlhf_core.contracts.backend import StepOutcome, TopTokens

UNIT = np.float32(1 / 1024)
"""Step of the log-probs that engine and models tell, exact in float32."""
ENTROPY = 0.5
"""Of the policy, in every update."""


class Record(Diary):
    """A diary that keeps what was asked beside each event."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def note(self, event):
        # How many updates came before is the run's past, in which two runs may differ.
        self.calls.append((event.partition(" version")[0], None))
        super().note(event)

    def asked(self, name, content):
        self.calls.append((name, plain(content)))

    def step(self, number):
        """Calls of a step of the newest run, from its first request to the engine on."""
        names = [name for name, _ in self.calls]
        start = len(names) - 1 - names[::-1].index("runtime starts")
        if (before := f"step {number - 1}") in names[start:]:
            start = names.index(before, start)
        start = names.index("generate", start)
        return self.calls[start : names.index(f"step {number}", start)]


class RecordedEngine(WrittenEngine):
    async def generate(self, request):
        self._diary.asked("request", request)
        return await super().generate(request)

    async def checksum(self):
        await super().checksum()
        return self.sources[-1]


class RecordedRole(WrittenRole):
    """A model whose log-probs are those of its name: another number of the same tokens for another model."""

    def __init__(self, diary, name):
        super().__init__(diary)
        self.skips = False
        """True: the gradient of each update is not finite."""
        self._name = name

    async def checksum(self):
        return self.weights()

    async def logprobs(self, batch):
        self._asked("logprobs", batch)
        return self._of_actions(batch)

    async def base_logprobs(self, batch):
        self._asked("base_logprobs", batch)
        return self._of_actions(batch)

    async def values(self, batch):
        self._asked("values", batch)
        return self._of_actions(batch)

    async def statistics(self, batch, names):
        self._asked("statistics", batch, names)
        return {name: self._of_actions(batch) for name in names}

    async def top_tokens(self, batch, k):
        self._asked("top_tokens", batch, k)
        rows = len(self._of_actions(batch))
        ids = np.tile(np.arange(k, dtype=np.int32), (rows, 1))
        return TopTokens(token_ids=ids, logprobs=-UNIT * (1 + ids.astype(np.float32)))

    async def train_step(self, batch, plan):
        self._require_here("train_step")
        if self._name == "policy":
            self._diary.note("learn")
        self._asked("train_step", batch.trajectories, columns_of(batch), plan)
        metrics = {"train/skipped_updates": Metric(float(self.skips), reduction="sum")}
        if self._name == "policy":
            metrics["policy/entropy"] = Metric(ENTROPY)
        self.updates += 1
        logprobs = self._of_actions(batch.trajectories) if plan.return_logprobs else None
        return StepOutcome(metrics=metrics, logprobs=logprobs)

    def _asked(self, call, batch, *more):
        self._diary.asked(f"{self._name}.{call}", (batch.token_ids.tolist(), *more))

    def _of_actions(self, batch):
        columns = batch.tokens.read()
        ids = columns.token_ids[columns.action_mask]
        return -UNIT * (1 + (ids + len(self._name)) % 8).astype(np.float32)


def columns_of(batch):
    """What an update gets beside the rollouts: columns, rows to imitate, and the teacher's tokens."""
    rows = batch.supervised
    return {
        **batch.columns,
        "supervised": None if rows is None else rows.token_ids,
        "teacher_top": batch.teacher_top,
    }


class RecordedRuntime(WrittenRuntime):
    """Has a model for each role of the run, and no learner, so that the loop learns itself."""

    def __init__(self, diary):
        super().__init__(diary)
        self.engine = RecordedEngine(diary)
        self.roles = {}
        self.skips = False

    async def start(self, spec, plugins):
        self.specs.append(spec)
        self.diary.note("runtime starts")
        self.roles = {name: RecordedRole(self.diary, name) for name in spec.roles}
        self.role = self.roles["policy"]
        self.role.skips = self.skips
        return Placement(roles=self.roles, engine=self.engine)


class RecordedRun(SmallRun):
    """Starts runs whose newest is in ``diary.calls``."""

    runtime_type = RecordedRuntime

    def __init__(self, folder):
        super().__init__(folder)
        self.diary = Record()

    def asked(self, output, step=3):
        """All that the newest run asked of its parts in a step, and the metrics that it wrote of it."""
        # The whole tree would show every option, obeyed or not.
        spec = replace(self.runtime.specs[0], config={})
        return {
            "spec": plain(spec),
            "calls": self.diary.step(step),
            "metrics": self.metrics(output, step),
        }

    def metrics(self, output, step=3):
        found = self.lines(output=output)
        (metrics,) = [
            each["metrics"] for each in found if each["step"] == step and "metrics" in each
        ]
        return metrics


def plain(value: Any) -> Any:
    """Return lists, mappings and numbers that compare by value in place of arrays and dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"": type(value).__name__, **named}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value
