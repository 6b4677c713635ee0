"""The order in which engine and roles take their memory: strict fakes, asked for everything in any order."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core import RolloutError
from rlhf_core.contracts import GenerationRequest, SamplingParams, Uid
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import FakeEngine
from rlhf_trainer.loop.sleeping import PHASES, TOTAL, Sleeping

REQUEST = GenerationRequest(
    uid=Uid(epoch=0, prompt=0, sample=0),
    prompt_ids=(5, 6),
    seeds=(1,),
    sampling=SamplingParams(max_new_tokens=2),
)


class StrictRole:
    """Weights that are a number. It refuses every call that needs what is elsewhere."""

    def __init__(self, name):
        self.name = name
        self.value = 0
        self.state_is_here = self.weights_are_here = True
        self.stays = None
        """Of the last ``offload``: whether the weights stayed."""

    async def offload(self, *, weights=True, state=True):
        self.state_is_here, self.stays = self.state_is_here and not state, not weights
        if weights:
            self.weights_are_here = False

    async def reload(self):
        self.state_is_here = self.weights_are_here = True

    def train(self):
        assert self.state_is_here, f"{self.name} trains while its state is elsewhere"
        assert self.weights_are_here
        self.value += 1

    def weights(self):
        assert self.weights_are_here, f"{self.name} is delivered while its weights are elsewhere"
        return self.value

    async def save(self, folder):
        assert self.state_is_here
        assert self.weights_are_here


class NumberEngine(FakeEngine):
    """Serves a number, which is lost by sleep."""

    served = None

    def __init__(self, *, shares_weights=False):
        super().__init__()
        self.shares_weights = shares_weights

    async def update_weights(self, version, source):
        await super().update_weights(version, source)
        self.served = source

    async def sleep(self):
        await super().sleep()
        self.served = None


def parts(
    *,
    moving=("policy", "critic"),
    leaving="all",
    shares_weights=False,
    adapted=False,
    engine=None,
):
    roles = {name: StrictRole(name) for name in ("policy", "critic", "reference")}
    engine = engine or NumberEngine(shares_weights=shares_weights)
    engine.served = 0
    return Sleeping(engine, roles, moving, leaving=leaving, adapted=adapted), engine, roles


async def learn(sleeping, roles, version, delivers):
    await sleeping.for_roles(version)
    for name in ("critic", "policy"):
        roles[name].train()
    if delivers:
        await sleeping.deliver(version + 1)


@settings(deadline=None, max_examples=60)
@given(
    calls=st.lists(st.sampled_from(["generate", "evaluate", "learn", "save"]), max_size=12),
    shares_weights=st.booleans(),
)
def test_in_any_order_of_phases_each_finds_what_it_needs(calls, shares_weights):
    """What is generated comes from the newest weights; a save, an evaluation, or nothing may be between two steps."""

    async def run():
        sleeping, engine, roles = parts(shares_weights=shares_weights)
        version = 0
        for call in calls:
            if call in ("generate", "evaluate"):
                await sleeping.for_engine(version)
                await engine.generate(REQUEST)
                assert engine.served == roles["policy"].value
                assert not roles["critic"].state_is_here
            elif call == "learn":
                await learn(sleeping, roles, version, delivers=True)
                version += 1
                assert engine.is_asleep
            else:
                (saved,) = sleeping.saved({"policy": roles["policy"]}, version).values()
                await saved.save("folder")
                assert engine.is_asleep

    asyncio.run(run())


@pytest.mark.parametrize("shares_weights", [False, True])
def test_only_weights_are_beside_those_that_an_engine_takes_back(shares_weights):
    """A role that has trained may fill the device: an engine's own weights do not fit beside its state."""
    here = []

    async def run():
        sleeping, engine, roles = parts(shares_weights=shares_weights)
        update = engine.update_weights

        async def watched(version, source):
            here.append([roles[name].state_is_here for name in ("policy", "critic")])
            await update(version, source)

        engine.update_weights = watched
        await sleeping.for_engine(0)
        await learn(sleeping, roles, 0, delivers=True)

    asyncio.run(run())

    assert here == [[shares_weights] * 2]


def test_a_learner_that_failed_leaves_an_engine_that_can_still_be_woken():
    async def run():
        sleeping, engine, roles = parts()
        await sleeping.for_engine(0)
        await learn(sleeping, roles, 0, delivers=False)
        await sleeping.for_engine(0)
        assert engine.served == 1

    asyncio.run(run())


class KeepingEngine(NumberEngine):
    """Keeps its weights while it sleeps, so that it wakes without a delivery; the first delivery fails."""

    refusals = 1

    async def update_weights(self, version, source):
        if self.refusals:
            self.refusals -= 1
            raise RolloutError("no room")
        await super().update_weights(version, source)

    async def sleep(self):
        served = self.served
        await super().sleep()
        self.served, self.has_weights = served, True


@pytest.mark.parametrize("delivered_before", [False, True])
def test_after_a_delivery_that_failed_nothing_is_generated_with_old_weights(delivered_before):
    """An engine that keeps its weights would wake with those of the step before, and nobody would notice."""

    async def run():
        sleeping, engine, roles = parts(engine=KeepingEngine())
        await sleeping.for_engine(0)
        version = 1
        if (
            delivered_before
        ):  # then the engine was given weights since it fell asleep, but not these
            engine.refusals = 0
            await learn(sleeping, roles, 0, delivers=True)
            engine.refusals, version = 1, 2
        with pytest.raises(RolloutError, match="no room", check=has_code("rollout/failed")):
            await learn(sleeping, roles, version - 1, delivers=True)
        await sleeping.for_engine(version)
        assert engine.served == roles["policy"].value == version

    asyncio.run(run())


@pytest.mark.parametrize(
    ("shares_weights", "adapted", "staying"),
    [(False, False, []), (True, False, ["policy"]), (True, True, ["policy", "critic"])],
)
def test_weights_stay_where_the_engine_computes_with_them(shares_weights, adapted, staying):
    """Beside an adapter another role may compute with the same base."""

    async def run():
        sleeping, _, roles = parts(shares_weights=shares_weights, adapted=adapted)
        await sleeping.for_engine(0)
        assert [name for name, role in roles.items() if role.stays] == staying
        assert roles["reference"].stays is None  # it has an accelerator of its own

    asyncio.run(run())


@pytest.mark.parametrize(
    ("leaving", "state_stays", "weights_stay"),
    [("nothing", True, True), ("state", False, True), ("all", False, False)],
)
def test_no_more_leaves_than_the_engine_needs_room_for(leaving, state_stays, weights_stay):
    async def run():
        sleeping, engine, roles = parts(leaving=leaving)
        for version in range(2):
            await sleeping.for_engine(version)
            assert roles["policy"].state_is_here is state_stays
            assert roles["policy"].weights_are_here is weights_stay
            assert roles["policy"].stays is not None, "what an allocator keeps is given back"
            await engine.generate(REQUEST)
            await learn(sleeping, roles, version, delivers=True)
            assert engine.is_asleep

    asyncio.run(run())


def test_a_step_reports_the_seconds_of_its_moves():
    async def run():
        sleeping, _, roles = parts()
        await sleeping.for_engine(0)
        await learn(sleeping, roles, 0, delivers=True)
        await sleeping.for_engine(1)
        return sleeping.take_seconds(), sleeping.take_seconds()

    first, second = asyncio.run(run())

    assert tuple(first) == tuple(second) == (*PHASES, TOTAL)
    assert first[TOTAL] == pytest.approx(sum(first[phase] for phase in PHASES))
    assert all(seconds > 0 for seconds in first.values())
    assert set(second.values()) == {0.0}


def test_the_fake_engine_refuses_what_a_sleeping_one_cannot_do():
    async def run():
        engine = FakeEngine()
        await engine.sleep()
        for call, match, code in (
            (engine.generate(REQUEST), "is asleep", "engine/asleep"),
            (engine.wake(), "weights are gone", "engine/wrong-state"),
            (engine.sleep(), "asleep already", "engine/wrong-state"),
        ):
            with pytest.raises(RolloutError, match=match, check=has_code(code)):
                await call
        await engine.update_weights(1, None)
        await engine.wake()
        with pytest.raises(RolloutError, match="it is awake", check=has_code("engine/wrong-state")):
            await engine.wake()

    asyncio.run(run())


def once(events):
    return [event for event, _ in itertools.groupby(events)]


SLEEPING = {"runtime": {"sleep": "always"}}


def moves(small_run):
    names = {"offload", "reload", "sleep", "wake", "generate", "learn", "checksum", "save", "load"}
    names |= {"serve version 1", "serve version 2", "export", "runtime starts", "offload the state"}
    return once(event for event in small_run.events if event in names)


def test_a_run_sleeps_learns_delivers_and_wakes(small_run):
    steps, _ = small_run.steps(SLEEPING, count=2)

    step = ["sleep", "reload", "learn"]
    assert moves(small_run) == [
        *("runtime starts", "offload", "generate"),
        *(*step, "offload the state", "serve version 1", "checksum"),
        *("offload", "wake", "generate"),
        *(*step, "offload the state", "serve version 2", "checksum"),
    ]
    assert small_run.runtime.specs[0].moving_roles == ("policy",)
    assert small_run.runtime.specs[0].engine_spec.sleeps
    assert set(PHASES) <= steps[1].timing.keys()


def test_where_no_role_leaves_its_memory_nothing_is_moved_and_no_move_is_timed(small_run):
    steps, _ = small_run.steps({"runtime": {"sleep": "never"}}, count=2)

    assert moves(small_run) == [
        "runtime starts",
        *("generate", "learn", "serve version 1", "checksum"),
        *("generate", "learn", "serve version 2", "checksum"),
    ]
    assert not {*PHASES, TOTAL} & steps[1].timing.keys()


def test_a_checkpoint_brings_back_what_left_for_the_update(small_run):
    small_run(SLEEPING, {"checkpoint": {"every": 1}, "train": {"steps": 2}})

    assert moves(small_run)[:12] == [
        *("runtime starts", "offload", "generate"),
        *("sleep", "reload", "learn", "offload the state", "serve version 1", "checksum"),
        *("reload", "save", "offload"),
    ]


def test_a_checkpoint_after_an_evaluation_wakes_the_engine_with_the_weights_it_had(small_run):
    small_run(
        SLEEPING,
        {"eval": {"fraction": 0.25, "every": 1, "at_start": False}},
        {"checkpoint": {"every": 1}, "train": {"steps": 2}},
    )

    served = small_run.runtime.engine.sources
    assert served == ["weights after 1", "weights after 1", "weights after 2"]
    assert small_run.results[0].status == "finished"


def test_a_resumed_run_reads_its_state_while_the_engine_sleeps(small_run):
    small_run(SLEEPING, {"checkpoint": {"every": 1}, "train": {"steps": 1}})
    del small_run.events[:]

    small_run(SLEEPING, {"resume": {"checkpoint": "auto"}, "train": {"steps": 2}})

    assert moves(small_run)[:8] == [
        *("runtime starts", "sleep", "reload", "load", "offload the state", "serve version 1"),
        *("offload", "wake"),
    ]


@pytest.mark.parametrize("event", ["sleep", "reload", "learn", "offload", "wake"])
def test_a_run_that_fails_between_two_phases_takes_everything_down(small_run, event):
    small_run.diary.fail(event, RolloutError("broken"))

    with pytest.raises(RolloutError, match="broken", check=has_code("rollout/failed")):
        small_run(SLEEPING)

    assert small_run.events[-2:] == ["runtime closes", "run ends: failed"]


def test_a_stop_request_while_the_engine_sleeps_saves_the_step(small_run):
    small_run.diary.interrupt("learn", time=2)

    result = small_run(SLEEPING)

    assert (result.status, result.steps) == ("interrupted", 2)
    assert small_run.checkpoints() == [2]
