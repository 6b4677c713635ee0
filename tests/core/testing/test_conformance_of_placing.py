"""Runtimes and vision models that break one promise each, and what catches them."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from rlhf_core import Component, ConfigError
from rlhf_core.capabilities import IN_PROCESS
from rlhf_core.contracts import Placement
from rlhf_core.media import MediaRef
from rlhf_core.testing.conformance import run_checks


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
        for part in self.parts:
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
    assert check in caught_by("rlhf_runtimes", runtime, provides={IN_PROCESS})


def test_a_right_runtime_passes_and_one_with_processes_of_its_own_is_not_asked():
    assert caught_by("rlhf_runtimes", Right, provides={IN_PROCESS}) == set()
    assert run_checks("rlhf_runtimes", Component(name="far", factory=Right)) == []


@dataclass
class Squares:
    """A token for each square of 8 by 8 pixels, and one in front."""

    marker_id: int = 5
    pads: tuple[int, ...] = (5, 6)
    first: int = 5

    @property
    def never_sampled(self):
        return self.pads

    def tokens_of(self, image: MediaRef):
        return (self.first, *[6] * max(1, image.width * image.height // 64))


class Sees:
    """Writes images by ``tokens``."""

    tokens = Squares

    def image_tokens(self, model_path, *, trust_remote_code):
        return self.tokens()


class ByContent(Squares):
    """As many tokens as a digest says."""

    def tokens_of(self, image):
        return (5, *[6] * (1 + int(image.sha256[0], 16)))


class NoTokens(Squares):
    """Images leave nothing."""

    def tokens_of(self, image):
        return ()


class MayBeWritten(Squares):
    """A policy can write the marker."""

    @property
    def never_sampled(self):
        return (6,)


class Crashes(Sees):
    """Looks for a file that is not there."""

    def image_tokens(self, model_path, *, trust_remote_code):
        if not model_path.endswith("llava"):
            raise (
                FileNotFoundError(model_path) if "qwen" not in model_path else ConfigError("other")
            )
        return Squares()


@pytest.mark.parametrize(
    ("tokens", "check"),
    [
        (Squares, None),
        (ByContent, "check_equal_sizes_have_equal_tokens"),
        (NoTokens, "check_an_image_has_tokens"),
        (MayBeWritten, "check_a_policy_cannot_write_an_image"),
    ],
)
def test_a_broken_vision_model_is_caught(tokens, check):
    class Tried(Sees):
        """Reads all of the kit's models alike."""

    Tried.tokens = tokens

    caught = caught_by("rlhf_vision_models", Tried)

    assert caught == set() if check is None else check in caught


def test_a_folder_that_is_no_model_has_to_be_refused_in_words():
    assert "check_what_is_no_model_is_refused" in caught_by("rlhf_vision_models", Crashes)
