"""Checks of runtimes (``contracts.Runtime``) wherever their roles are: in this process, in others, on other machines.

Roles have a backend without a model, which processes build from a file of the kit. The folder by which it speaks has to
be one that all processes see: it is in the working directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.capabilities import IN_PROCESS
from rlhf_core.component import ComponentRef
from rlhf_core.contracts.backend import RoleSpec
from rlhf_core.contracts.engine import EngineSpec
from rlhf_core.contracts.runtime import Placement, RoleHandle, Runtime, RuntimeSpec
from rlhf_core.errors import DataError, RLHFError
from rlhf_core.plugins import load

from ...columns import batch_of, group_of
from ...subject import HANGS_AFTER_S, Subject, checks_in, traits
from . import answering

PATIENCE_S = 60.0
"""Seconds after which a role whose call is to wait gives up, and a process that is to end has not ended."""
_POLL_S = 0.02
_ROLES = ("policy", "reference")
_BATCHES = tuple(
    batch_of(group_of((0.0, 1.0, 0.5), prompt=prompt), group_of((1.0,), prompt=prompt + 1))
    for prompt in (0, 2, 4)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One runtime, and the files by which its roles speak."""

    runtime: Runtime
    folder: Path
    spec: RuntimeSpec

    async def start(self) -> Placement:
        return await self.runtime.start(self.spec, load())

    def pids(self) -> set[int]:
        """Processes in which roles were set up, but this one."""
        found = {int(file.name.rpartition("-")[2]) for file in self.folder.glob("*.pid-*")}
        return found - {os.getpid()}

    def pid_of(self, role: str) -> int:
        """A process of a role."""
        return int(next(self.folder.glob(f"{role}.pid-*")).name.rpartition("-")[2])

    def let_go(self) -> None:
        """Let calls of ``values`` come back."""
        (self.folder / answering.GO).touch()

    async def call_under_way(self) -> tuple[RoleHandle, asyncio.Future[Any]]:
        """Start, ask the policy for ``values``, and return it with the call once that has begun, while the event loop
        goes on; raise what ended it before."""
        role = (await self.start()).roles["policy"]
        call = asyncio.ensure_future(role.values(_BATCHES[0]))
        give_up = time.monotonic() + PATIENCE_S
        while not (self.folder / "policy.began").exists():
            if call.done():
                call.result()
            assert time.monotonic() < give_up, "the call of policy never reached its backend"
            await asyncio.sleep(_POLL_S)
        return role, call


def _try(
    subject: Subject,
    use: Callable[[_Trial], Awaitable[None]],
    *,
    overlaps: bool = False,
    broken: str = "",
) -> None:
    """Make a runtime and use it; what hangs fails."""

    async def bounded() -> None:
        with _folder() as folder:
            spec = _spec(subject, folder, overlaps=overlaps, broken=broken)
            trial = _Trial(runtime=subject.make(), folder=folder, spec=spec)
            async with asyncio.timeout(HANGS_AFTER_S):
                try:
                    await use(trial)
                finally:
                    await trial.runtime.close()

    asyncio.run(bounded())


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rlhf-check-", dir=Path.cwd()) as name:
        folder = Path(name)
        (folder / "config.json").write_text("{}", encoding="utf-8")
        yield folder


def _spec(subject: Subject, folder: Path, *, overlaps: bool, broken: str) -> RuntimeSpec:
    # Roles of one process leave its event loop to the engine, so there has to be one.
    engine = overlaps and IN_PROCESS in subject.provides
    given = EngineSpec(
        model_path=str(folder), dtype="float32", max_length=8, max_concurrency=1, eos_token_ids=(2,)
    )
    options = {"folder": str(folder), "broken": broken, "patience_s": PATIENCE_S}
    return RuntimeSpec(
        roles={name: RoleSpec(role=name, model_path=str(folder)) for name in _ROLES},
        backend=ComponentRef(
            kind="rlhf_train_backends",
            name=f"{answering.__file__}:AnsweringBackend",
            options=options,
        ),
        engine=ComponentRef(kind="rlhf_engines", name=f"{answering.__file__}:SilentEngine")
        if engine
        else None,
        engine_spec=given if engine else None,
        overlaps=overlaps,
    )


def _assert_answer(role: str, batch: Any, found: Any, *, sign: float = 1.0) -> None:
    expected = sign * answering.answer(role, batch)
    assert np.array_equal(np.asarray(found), expected), (
        f"{role} was asked about {expected[:3]}..., and {np.asarray(found)[:3]}... came back"
    )


def _has_processes(subject: Subject) -> bool:
    return IN_PROCESS not in subject.provides


def check_calls_under_way_get_their_own_answers(subject: Subject) -> None:
    """Every role of the spec is started; of several calls under way each gets its own answer, in order."""

    async def use(trial: _Trial) -> None:
        placement = await trial.start()
        assert set(placement.roles) == set(_ROLES), f"roles {sorted(placement.roles)}"
        names = [await placement.roles[name].checksum() for name in _ROLES]
        assert names == list(_ROLES), f"the handles of {_ROLES} are those of {names}"
        asked = [(name, batch) for batch in _BATCHES for name in _ROLES]
        answers = await asyncio.gather(
            *(placement.roles[name].logprobs(batch) for name, batch in asked)
        )
        for (name, batch), found in zip(asked, answers, strict=True):
            _assert_answer(name, batch, found)

    _try(subject, use)


def check_an_exception_of_a_role_keeps_its_name(subject: Subject) -> None:
    """An exception in a role is that of the call: of its class if it is the core's, else with its name, and with its
    message. The role answers the next call."""

    async def use(trial: _Trial) -> None:
        role = (await trial.start()).roles["reference"]
        for call, expected, message in (
            (role.save, DataError, "the reference saves nothing today"),
            (role.load, ZeroDivisionError, "the reference divides by zero"),
        ):
            raised: Exception | None = None
            try:
                await call(trial.folder / "checkpoint")
            except Exception as error:
                raised = error
            shown = f"{type(raised).__name__}: {raised}"
            assert raised is not None, f"a {expected.__name__} was swallowed"
            is_kept = isinstance(raised, expected) or (
                expected is not DataError and expected.__name__ in shown
            )
            assert is_kept, f"a {expected.__name__} came as {shown}"
            assert message in shown, f"{message!r} came as {shown}"
        _assert_answer("reference", _BATCHES[0], await role.logprobs(_BATCHES[0]))

    _try(subject, use)


def check_roles_leave_the_loop_free(subject: Subject) -> None:
    """With ``RuntimeSpec.overlaps`` the event loop goes on while a role computes."""

    async def use(trial: _Trial) -> None:
        _, call = await trial.call_under_way()
        assert not call.done() or call.exception() is None, f"the loop stood still: {call}"
        trial.let_go()
        _assert_answer("policy", _BATCHES[0], await call, sign=-1.0)

    _try(subject, use, overlaps=True)


def check_a_cancelled_call_leaves_nothing(subject: Subject) -> None:
    """A call that is cancelled under way ends with that, and its answer is given to no later call."""

    async def use(trial: _Trial) -> None:
        role, call = await trial.call_under_way()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        assert call.cancelled(), f"a cancelled call went on to its end: {call}"
        trial.let_go()
        _assert_answer("policy", _BATCHES[1], await role.logprobs(_BATCHES[1]))
        _assert_answer("policy", _BATCHES[2], await role.values(_BATCHES[2]), sign=-1.0)

    _try(subject, use, overlaps=True)


@traits(_has_processes)
def check_a_killed_process_is_reported(subject: Subject) -> None:
    """A role whose process is killed ends its call, and every later one, with an error that names the role."""

    async def use(trial: _Trial) -> None:
        role, call = await trial.call_under_way()
        assert trial.pid_of("policy") != os.getpid(), (
            f"the role is in this process; the component has to provide {IN_PROCESS!r}"
        )
        os.kill(trial.pid_of("policy"), signal.SIGKILL)
        for ask in (lambda: call, lambda: role.logprobs(_BATCHES[0])):
            raised: Exception | None = None
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await ask()
            except TimeoutError as error:
                raise AssertionError(f"a call of a dead role hung for {PATIENCE_S:g} s") from error
            except Exception as error:
                raised = error
            assert isinstance(raised, RLHFError), f"a call of a dead role ended with {raised!r}"
            assert "policy" in str(raised), f"the error does not name the role: {raised}"

    _try(subject, use)


def check_nothing_is_left_behind(subject: Subject) -> None:
    """After ``close`` no process, thread or task is left, also after a start that failed, which raises its error; to
    close again does nothing."""
    before = set(threading.enumerate())

    for broken in ("", "reference"):

        async def use(trial: _Trial, broken: str = broken) -> None:
            raised: Exception | None = None
            try:
                await trial.start()
            except Exception as error:
                raised = error
            assert (raised is None) == (not broken), f"the start ended with {raised!r}"
            if raised is not None:
                message = "the reference cannot be set up today"
                is_kept = isinstance(raised, DataError) and message in str(raised)
                assert is_kept, f"a DataError, {message!r}, came as {raised!r}"
            await trial.runtime.close()
            await trial.runtime.close()
            _assert_closed_once(trial)
            await _assert_ended(trial)

        _try(subject, use, broken=broken)
        _assert_no_thread_but(before)


def _assert_closed_once(trial: _Trial) -> None:
    for file in trial.folder.glob("*.closed"):
        times = len(file.read_text(encoding="utf-8").splitlines())
        assert times == 1, f"the backend of {file.stem} was closed {times} times"


async def _assert_ended(trial: _Trial) -> None:
    """Raise AssertionError if, after a while, there still is a process or a task that the runtime started."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        processes = [pid for pid in sorted(trial.pids()) if _is_alive(pid)]
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not (processes or tasks):
            return
        assert time.monotonic() < give_up, f"left behind: processes {processes}, tasks {tasks}"
        await asyncio.sleep(_POLL_S)


def _assert_no_thread_but(before: set[threading.Thread]) -> None:
    """Raise AssertionError if, after a while, there still is a thread that the runtime started.

    Called when the event loop has ended, since the threads of ``asyncio.to_thread`` end with it.
    """
    give_up = time.monotonic() + PATIENCE_S
    while threads := [t.name for t in threading.enumerate() if t not in before and not t.daemon]:
        assert time.monotonic() < give_up, f"left behind: threads {threads}"
        time.sleep(_POLL_S)


def _is_alive(pid: int) -> bool:
    """False also for a process that has ended and for which nobody has waited yet."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except ProcessLookupError:
        return False
    except OSError:  # no such file: it has ended meanwhile, or this is no Linux
        return not Path("/proc/self/stat").exists()
    return status.rpartition(")")[2].split()[0] not in "ZX"


CHECKS = checks_in(__name__)
