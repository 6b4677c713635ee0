"""Checks of runtimes (``contracts.Runtime``) that build everything in the process that started the run.

They have such a runtime build roles and an engine that write down what is asked of them. A runtime with processes of
its own builds its parts there, by their names; to it, and to all others, ``any_runtime`` applies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_core.capabilities import IN_PROCESS
from rlhf_core.component import ComponentRef
from rlhf_core.contracts.backend import RoleSpec
from rlhf_core.contracts.engine import EngineSpec
from rlhf_core.contracts.runtime import Placement, RuntimeSpec

from ...subject import Subject, checks_in
from . import any_runtime

_BACKEND = ComponentRef(kind="rlhf_train_backends", name="checked:backend")
_ENGINE = ComponentRef(kind="rlhf_engines", name="checked:engine")
_ENGINE_SPEC = EngineSpec(
    model_path="model", dtype="float32", max_length=8, max_concurrency=1, eos_token_ids=(2,)
)
_ROLES = ("policy", "critic", "reference")


class _WrittenBackend:
    """Writes down its calls, and answers each with an object of its own."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self.role = ""
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.closed = 0
        self.held_the_loop = False

    def setup(self, spec: RoleSpec, plugins: Any) -> None:
        self.role = spec.role
        self._parts.events.append(f"{spec.role} is set up")
        if self.role == self._parts.breaks:
            raise RuntimeError("the device is full")

    def close(self) -> None:
        self.closed += 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name in ("setup_beside", "base_logprobs"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments, named))
            self.held_the_loop |= _in_a_loops_thread()
            if name == self._parts.breaks:
                raise ValueError(f"no {name} today")
            return (self.role, name)

        return call


def _in_a_loops_thread() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # which says that there is none
        return False
    return True


class _WrittenEngine:
    """Writes down what it was started with."""

    shares_weights = False

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self.spec: Any = None
        self.source: Any = None
        self.closed = 0

    async def start(self, spec: EngineSpec, source: Any) -> None:
        self.spec, self.source = spec, source
        self._parts.events.append("the engine starts")
        if self._parts.breaks == "engine":
            raise RuntimeError("no memory for a cache")

    async def generate(self, request: Any) -> list[Any]:
        return []

    async def close(self) -> None:
        self.closed += 1


class _Parts:
    """Stands in for the plugins of a process: builds the parts of one placement, and remembers them.

    Args:
        breaks: the role whose setup fails, ``engine`` for its start, or a call of a backend that fails; empty: nothing.
    """

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks
        self.backends: list[_WrittenBackend] = []
        self.engines: list[_WrittenEngine] = []
        self.events: list[str] = []

    def build(self, ref: ComponentRef) -> Any:
        if ref == _ENGINE:
            self.engines.append(_WrittenEngine(self))
            return self.engines[-1]
        assert ref == _BACKEND, f"asked for {ref}; the spec has {_BACKEND} and {_ENGINE}"
        self.backends.append(_WrittenBackend(self))
        return self.backends[-1]


def _spec(*, engine: bool = True, overlaps: bool = False) -> RuntimeSpec:
    return RuntimeSpec(
        roles={name: RoleSpec(role=name, model_path="model") for name in _ROLES},
        backend=_BACKEND,
        engine=_ENGINE if engine else None,
        engine_spec=_ENGINE_SPEC if engine else None,
        overlaps=overlaps,
    )


def _placed(
    subject: Subject,
    parts: _Parts,
    use: Callable[[Placement], Awaitable[None]],
    *,
    engine: bool = True,
    overlaps: bool = False,
) -> None:
    """Start the runtime, use what it has built, and close it, whatever happened."""

    async def run() -> None:
        runtime = subject.make()
        try:
            placement = await runtime.start(_spec(engine=engine, overlaps=overlaps), parts)
            await use(placement)
        finally:
            await runtime.close()

    asyncio.run(run())


def check_each_role_is_built_once(subject: Subject) -> None:
    """There is a handle for each role of the spec, with a backend of its own that was set up for it."""
    parts = _Parts()

    async def use(placement: Placement) -> None:
        assert set(placement.roles) == set(_ROLES), f"roles {sorted(placement.roles)}"
        built = sorted(backend.role for backend in parts.backends)
        assert built == sorted(_ROLES), f"backends were set up for {built}"
        for name, role in placement.roles.items():
            answer: Any = await role.checksum()
            assert answer == (name, "checksum"), f"the handle of {name} answers {answer}"

    _placed(subject, parts, use)


def check_calls_and_answers_come_through(subject: Subject) -> None:
    """A handle's call reaches the backend once, with its arguments, and has the backend's answer."""
    parts = _Parts()
    batch, plan, folder = object(), object(), Path("folder")
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "logprobs": ((batch,), {}),
        "values": ((batch,), {}),
        "statistics": ((batch, ("entropy",)), {}),
        "top_tokens": ((batch, 3), {}),
        "train_step": ((batch, plan), {}),
        "save": ((folder,), {}),
        "load": ((folder,), {}),
        "export": ((folder,), {"ema": True}),
    }

    async def use(placement: Placement) -> None:
        critic = next(backend for backend in parts.backends if backend.role == "critic")
        for name, (arguments, named) in calls.items():
            critic.calls.clear()
            answer = await getattr(placement.roles["critic"], name)(*arguments, **named)
            assert critic.calls == [(name, arguments, named)], (
                f"{name} reached it as {critic.calls}"
            )
            expected = None if name in ("save", "load", "export") else ("critic", name)
            assert expected is None or answer == expected, f"{name} was answered with {answer!r}"

    _placed(subject, parts, use)


def check_an_error_of_a_role_comes_through(subject: Subject) -> None:
    """An exception of a backend is that of the handle's call."""
    parts = _Parts(breaks="train_step")
    batch: Any = object()

    async def use(placement: Placement) -> None:
        raised: Exception | None = None
        try:
            await placement.roles["policy"].train_step(batch, batch)
        except ValueError as error:
            raised = error
        assert raised is not None, "the backend's error in train_step was swallowed"
        assert "no train_step today" in str(raised), f"another error: {raised}"

    _placed(subject, parts, use)


def check_the_engine_serves_the_policy(subject: Subject) -> None:
    """The engine is started with its spec and the policy's weights, after the policy was set up."""
    parts = _Parts()

    async def use(placement: Placement) -> None:
        assert placement.engine is not None, "the spec has an engine, the placement none"
        assert len(parts.engines) == 1, f"{len(parts.engines)} engines were built, expected 1"
        engine = parts.engines[0]
        assert engine.spec == _ENGINE_SPEC, f"it was told {engine.spec}"
        source: Any = engine.source.checksum()
        assert source == ("policy", "checksum"), f"its weights are those of {source}"
        order = [one for one in parts.events if one in ("policy is set up", "the engine starts")]
        assert order == ["policy is set up", "the engine starts"], f"in the order {order}"

    _placed(subject, parts, use)


def check_roles_leave_the_loop_to_the_engine(subject: Subject) -> None:
    """With ``RuntimeSpec.overlaps``, no role computes in the thread of the event loop, where the engine generates
    meanwhile; calls, answers and errors are the same."""
    parts = _Parts(breaks="values")
    batch: Any = object()

    async def use(placement: Placement) -> None:
        for name, role in placement.roles.items():
            answer: Any = await role.train_step(batch, batch)
            assert answer == (name, "train_step"), f"the handle of {name} answers {answer}"
            await role.logprobs(batch)
            raised: Exception | None = None
            try:
                await role.values(batch)
            except ValueError as error:
                raised = error
            assert raised is not None, f"an error in values of {name} was swallowed"
        held = [backend.role for backend in parts.backends if backend.held_the_loop]
        assert not held, f"computed in the thread of the event loop: {', '.join(held)}"

    _placed(subject, parts, use, overlaps=True)


def check_a_run_without_an_engine_has_none(subject: Subject) -> None:
    """Where the spec has no engine, none is built: commands that train on examples generate nothing."""
    parts = _Parts()

    async def use(placement: Placement) -> None:
        assert placement.engine is None, f"the placement has {placement.engine}"
        assert not parts.engines, f"{len(parts.engines)} engines were built"

    _placed(subject, parts, use, engine=False)


def check_close_takes_everything_down(subject: Subject) -> None:
    """``close`` closes the engine and each backend once, also after a start that failed, which raises its error."""

    async def use(placement: Placement) -> None:
        del placement

    for breaks in ("", "engine", "critic"):
        parts = _Parts(breaks)
        error: Exception | None = None
        try:
            _placed(subject, parts, use)
        except RuntimeError as found:
            error = found
        assert (error is None) == (breaks == ""), f"a start with a broken {breaks} raised {error!r}"
        closed = [(backend.role, backend.closed) for backend in parts.backends]
        closed += [("engine", engine.closed) for engine in parts.engines]
        assert all(count == 1 for _, count in closed), (
            f"closed with a broken {breaks or 'nothing'}: {closed}"
        )


def _in_process(subject: Subject) -> bool:
    return IN_PROCESS in subject.provides


CHECKS = any_runtime.CHECKS + tuple(
    replace(check, applies=_in_process) for check in checks_in(__name__)
)
