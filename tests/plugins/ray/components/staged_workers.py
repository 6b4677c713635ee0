"""A rollout worker for the tests whose groups end when, and as, the test says.

``row`` of a task: ``until`` names a file in the folder that the group waits for, ``fail`` is what it raises. The
folder gets a file ``begun-N-PID`` by task, ``cancelled-N``, and ``call-TIME`` with the number of groups by call.
"""

import asyncio
import os
import time
from pathlib import Path

import numpy as np

from rlhf_core import RewardError
from rlhf_core.contracts import FinishedGroup, Trajectory, TrajectoryColumns, Turn
from rlhf_plugin_ray.rollouts.rollout_actor import RolloutActor


def group_of(task, settings):
    """A group of rows whose tokens are the seeds."""
    rows = []
    for sample in range(settings.num_samples):
        tokens = np.array([*task.prompt_ids, settings.seed_of(task, sample, 0) % 1000], np.int32)
        rows.append(
            Trajectory(
                uid=task.uid._replace(sample=sample),
                token_ids=tokens,
                action_mask=np.arange(len(tokens)) == len(tokens) - 1,
                rollout_logprobs=np.zeros(1, np.float32),
                weight_version=np.zeros(1, np.int32),
                turns=(Turn(start=len(tokens) - 1, end=len(tokens)),),
                reward=float(task.uid.prompt),
                # A name of its own: groups that come together must not get each other's columns.
                metrics={f"of_{task.uid.prompt}": 1.0},
            )
        )
    return FinishedGroup(batch=TrajectoryColumns.from_trajectories(rows))


class StagedWorker(RolloutActor):
    def __init__(self, folder):
        super().__init__()
        self._folder = Path(folder)

    async def pid(self):
        return os.getpid()

    async def start(self, *arguments): ...

    async def engines(self, *arguments): ...

    async def begin(self, jobs):
        (self._folder / f"call-{time.monotonic_ns()}").write_text(str(len(jobs)))
        await super().begin(jobs)

    async def _play(self, job):
        row, number = job.task.row, job.task.uid.prompt
        (self._folder / f"begun-{number}-{os.getpid()}").touch()
        try:
            while "until" in row and not (self._folder / row["until"]).exists():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            (self._folder / f"cancelled-{number}").touch()
            raise
        if "fail" in row:
            raise RewardError(row["fail"])
        return group_of(job.task, job.settings)
