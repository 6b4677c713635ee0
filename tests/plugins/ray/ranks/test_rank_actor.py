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


class NoPlugins:
    def loggers(self):
        return []


def actor_of(backend):
    actor = RankActor()
    actor._backend, actor._plugins = backend, NoPlugins()
    return actor


@pytest.mark.usefixtures("nothing_frozen")
def test_a_rank_does_not_search_old_objects_for_garbage_in_the_middle_of_later_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("rlhf_trainer.loop.old_objects.time.perf_counter", lambda: now[0])
    backend = Backend()
    actor = actor_of(backend)

    for now[0] in (1.0, 10.9, 11.0):
        update = asyncio.run(actor.train_step(Columns(), "rows", "plan"))
        assert update.outcome == "done"

    assert backend.steps == [
        ("rows", "plan", False),
        ("rows", "plan", False),
        ("rows", "plan", True),
    ]


class UndoingBackend:
    """Keeps the state before the last of its updates, and counts an update that fails only once it has begun."""

    updates_begun = 0

    def train_step(self, batch, plan):
        if plan == "fails before":
            raise ValueError(plan)
        self.updates_begun += 1
        return "done"

    def load(self, folder):
        pass

    def undo(self, updates_begun):
        return updates_begun == self.updates_begun - 1


def test_a_rank_goes_back_to_what_its_backend_kept_and_stays_where_nothing_has_changed():
    async def play():
        actor = actor_of(UndoingBackend())
        assert await actor.load("folder") == 1
        before = (await actor.train_step(Columns(), "rows", "plan")).changes
        with pytest.raises(ValueError, match="fails before"):
            await actor.train_step(Columns(), "rows", "fails before")
        assert await actor.undo(before)  # nothing to undo
        await actor.train_step(Columns(), "rows", "plan")
        assert await actor.undo(before)
        await actor.train_step(Columns(), "rows", "plan")
        assert not await actor.undo(before)

    asyncio.run(play())


def test_a_rank_whose_backend_cannot_undo_counts_calls():
    async def play():
        actor = actor_of(Backend())
        assert (await actor.train_step(Columns(), "rows", "plan")).changes == 1
        assert await actor.undo(1)
        assert not await actor.undo(0)

    asyncio.run(play())
