"""Runtimes that break one promise each, and what catches them."""

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core import Component, DataError, RLHFError
from rlhf_core.capabilities import IN_PROCESS
from rlhf_core.contracts import Placement
from rlhf_testing.conformance import applying, checks_of, run_checks, subject
from rlhf_testing.conformance.kinds.placing import any_runtime


class Handle:
    """A role's calls as coroutines, in a thread where the run overlaps."""

    def __init__(self, backend, *, overlaps=False):
        self.backend = backend
        self.overlaps = overlaps

    def __getattr__(self, name):
        async def call(*arguments, **named):
            if self.overlaps:
                return await asyncio.to_thread(getattr(self.backend, name), *arguments, **named)
            return getattr(self.backend, name)(*arguments, **named)

        return call

    def weights(self):
        return self.backend


class Right:
    """Keeps every promise."""

    handle = Handle
    served = "policy"

    def __init__(self, config=None):
        self.parts = []

    async def start(self, spec, plugins):
        roles = {}
        for name, role in spec.roles.items():
            backend = plugins.build(spec.backend)
            self.parts.append(backend)
            backend.setup(role, plugins)
            roles[name] = self.handle(backend, overlaps=spec.overlaps)
        return Placement(roles=roles, engine=await self.serve(spec, plugins, roles))

    async def serve(self, spec, plugins, roles):
        if spec.engine is None:
            return None
        engine = plugins.build(spec.engine)
        self.parts.append(engine)
        await engine.start(spec.engine_spec, roles[self.served].weights())
        return engine

    async def close(self):
        parts, self.parts = self.parts, []
        for part in parts:
            closing = part.close()
            if asyncio.iscoroutine(closing):
                await closing


class ServesTheCritic(Right):
    """The engine gets another role's weights."""

    served = "critic"


class HoldsTheLoop(Right):
    """Requests of the engine wait while a role computes, also where they should not."""

    async def start(self, spec, plugins):
        return await super().start(replace(spec, overlaps=False), plugins)


class AlwaysAnEngine(Right):
    """Commands that train on examples get an engine, too."""

    async def serve(self, spec, plugins, roles):
        engine = plugins.build(replace(spec.backend, kind="rlhf_engines", name="checked:engine"))
        self.parts.append(engine)
        await engine.start(spec.engine_spec, roles["policy"].weights())
        return engine


class LeavesRolesOpen(Right):
    """Only the engine is closed."""

    async def close(self):
        for part in self.parts[3:]:
            await part.close()


class OneBackendForAll(Right):
    """Roles share the first backend."""

    async def start(self, spec, plugins):
        placement = await super().start(spec, plugins)
        first = next(iter(placement.roles.values()))
        return replace(placement, roles=dict.fromkeys(placement.roles, first))


class QuietHandle(Handle):
    """Errors become None."""

    def __getattr__(self, name):
        async def call(*arguments, **named):
            try:
                return getattr(self.backend, name)(*arguments, **named)
            except ValueError:
                return None

        return call


class Quiet(Right):
    """Its handles swallow errors."""

    handle = QuietHandle


class ForgetsEma(Handle):
    """Averaged weights are never exported."""

    async def export(self, folder, *, ema=False):
        return self.backend.export(folder)


class Forgetful(Right):
    """Its handles lose an argument."""

    handle = ForgetsEma


def caught_by(hook, factory, **described):
    component = Component(name="tried", factory=lambda config: factory(), **described)
    return {outcome.check for outcome in run_checks(hook, component) if outcome.failed}


@pytest.mark.parametrize(
    ("runtime", "check"),
    [
        (ServesTheCritic, "check_the_engine_serves_the_policy"),
        (HoldsTheLoop, "check_roles_leave_the_loop_to_the_engine"),
        (AlwaysAnEngine, "check_a_run_without_an_engine_has_none"),
        (LeavesRolesOpen, "check_close_takes_everything_down"),
        (OneBackendForAll, "check_each_role_is_built_once"),
        (Quiet, "check_an_error_of_a_role_comes_through"),
        (Forgetful, "check_calls_and_answers_come_through"),
    ],
)
def test_a_broken_runtime_is_caught(runtime, check):
    checks = {one.name: one for one in checks_of("rlhf_runtimes")}
    tried = Component(name="tried", factory=lambda config: runtime(), provides={IN_PROCESS})

    with pytest.raises(AssertionError):
        checks[check](subject(tried))


def test_a_right_runtime_passes(here):
    assert caught_by("rlhf_runtimes", Right, provides={IN_PROCESS}) == set()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder for the files by which roles speak."""
    monkeypatch.chdir(tmp_path)


class Crossed(Handle):
    """Answers of calls under way are dealt out from the last one on."""

    waiting = ()

    async def logprobs(self, batch):
        Crossed.waiting = (*Crossed.waiting, self.backend.logprobs(batch))
        await asyncio.sleep(0.01)
        *Crossed.waiting, last = Crossed.waiting
        return last


class Renaming(Handle):
    """Every error is one of the runtime's own, in its own words."""

    def __getattr__(self, name):
        async def call(*arguments, **named):
            try:
                return getattr(self.backend, name)(*arguments, **named)
            except Exception:
                raise RuntimeError("something failed in a role") from None

        return call


class OneAtATime(Handle):
    """What a call that was cancelled still computes is the answer of the next."""

    late = None

    def __getattr__(self, name):
        async def call(*arguments, **named):
            work = asyncio.ensure_future(
                asyncio.to_thread(getattr(self.backend, name), *arguments, **named)
            )
            before, self.late = self.late, None
            try:
                return await asyncio.shield(before or work)
            except asyncio.CancelledError:
                self.late = work
                raise

        return call


class Mixed(Right):
    handle = Crossed


class Nameless(Right):
    handle = Renaming


class Belated(Right):
    handle = OneAtATime


class ClosesAgain(Right):
    """Closes its parts as often as it is asked."""

    async def close(self):
        parts = list(self.parts)
        await super().close()
        self.parts = parts


class LeavesATask(Right):
    """Something goes on after its end."""

    async def start(self, spec, plugins):
        self.task = asyncio.ensure_future(asyncio.sleep(60))
        return await super().start(spec, plugins)


class LeavesAProcess(Right):
    """A process of a role outlives the run."""

    async def start(self, spec, plugins):
        placement = await super().start(spec, plugins)
        folder = Path(spec.roles["policy"].model_path)
        self.process = subprocess.Popen(["sleep", "60"])
        (folder / f"policy.pid-{self.process.pid}").touch()
        return placement


class QuietStart(Right):
    """A start that failed looks like another error."""

    async def start(self, spec, plugins):
        try:
            return await super().start(spec, plugins)
        except DataError as error:
            raise RuntimeError("could not start") from error


@pytest.mark.parametrize(
    ("runtime", "check"),
    [
        (Mixed, "check_calls_under_way_get_their_own_answers"),
        (Nameless, "check_an_exception_of_a_role_keeps_its_name"),
        (HoldsTheLoop, "check_roles_leave_the_loop_free"),
        (Belated, "check_a_cancelled_call_leaves_nothing"),
        (LeavesATask, "check_nothing_is_left_behind"),
        (LeavesAProcess, "check_nothing_is_left_behind"),
        (QuietStart, "check_nothing_is_left_behind"),
        (ClosesAgain, "check_nothing_is_left_behind"),
    ],
)
def test_a_broken_runtime_of_any_kind_is_caught(here, monkeypatch, runtime, check):
    monkeypatch.setattr(any_runtime, "PATIENCE_S", 0.3)
    checks = {one.name: one for one in any_runtime.CHECKS}
    made = []

    def make(config):
        made.append(runtime())
        return made[-1]

    tried = subject(Component(name="tried", factory=make, provides={IN_PROCESS}))
    try:
        with pytest.raises(AssertionError):
            checks[check](tried)
    finally:
        for one in made:
            if process := getattr(one, "process", None):
                process.kill()
                process.wait()


def test_a_killed_role_that_hangs_is_caught_and_one_that_is_reported_passes(here, monkeypatch):
    monkeypatch.setattr(any_runtime, "PATIENCE_S", 20.0)
    far = Component(name="far", factory=lambda config: Far())
    checks = {one.name: one for one in any_runtime.CHECKS}
    assert "check_a_killed_process_is_reported" in {
        one.name for one in applying("rlhf_runtimes", subject(far))
    }

    checks["check_a_killed_process_is_reported"](subject(far))

    hanging = Component(name="far", factory=lambda config: Far(reports=False))
    monkeypatch.setattr(any_runtime, "PATIENCE_S", 5.0)
    with pytest.raises(AssertionError, match="a call of a dead role hung for 5 s"):
        checks["check_a_killed_process_is_reported"](subject(hanging))


class Far(Right):
    """Its roles are processes that do nothing but live; the runtime answers for them."""

    def __init__(self, *, reports=True):
        super().__init__()
        self.reports = reports
        self.processes = []

    async def start(self, spec, plugins):
        roles = {}
        for name, role in spec.roles.items():
            process = await asyncio.create_subprocess_exec("sleep", "60")
            self.processes.append(process)
            folder = Path(role.model_path)
            (folder / f"{name}.pid-{process.pid}").touch()
            roles[name] = FarHandle(name, folder, process, self.reports)
        return Placement(roles=roles, engine=None)

    async def close(self):
        processes, self.processes = self.processes, []
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


class FarHandle:
    """Every call waits for the end of the role's process."""

    def __init__(self, name, folder, process, reports):
        self.name, self.folder, self.process, self.reports = name, folder, process, reports

    def __getattr__(self, name):
        async def call(*arguments, **named):
            (self.folder / f"{self.name}.began").touch()
            await self.process.wait()
            if not self.reports:
                await asyncio.Event().wait()
            raise RLHFError(f"{self.name} died during {name}")

        return call
