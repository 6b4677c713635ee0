"""A rank's process, without Ray: what the actor does beside its backend."""

import asyncio
import gc
from dataclasses import dataclass

import pytest

pytest.importorskip("ray")
from rlhf_plugin_ray.ranks.rank_actor import RankActor


@dataclass
class Columns:
    trajectories: str = ""


class Backend:
    def __init__(self):
        self.steps = []

    def train_step(self, batch, plan):
        self.steps.append((batch.trajectories, plan, gc.get_freeze_count() > 0))
        return "done"


@pytest.mark.usefixtures("nothing_frozen")
def test_a_rank_does_not_search_old_objects_for_garbage_in_the_middle_of_later_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlhf_trainer.loop.old_objects.time.perf_counter", lambda: now[0])
    actor = RankActor()
    actor._backend = backend = Backend()

    for now[0] in (1.0, 10.9, 11.0):
        assert asyncio.run(actor.train_step(Columns(), "rows", "plan")) == "done"

    assert backend.steps == [
        ("rows", "plan", False),
        ("rows", "plan", False),
        ("rows", "plan", True),
    ]
