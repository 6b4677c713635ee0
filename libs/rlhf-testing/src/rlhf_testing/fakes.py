"""An engine without a model, for tests of executors, environments and rewards; and an adapter that adapts nothing, for
tests of backends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhf_core.batch.trajectory import Stop
from rlhf_core.component import Config
from rlhf_core.contracts.engine import Completion, EngineSpec, GenerationRequest, WeightSource
from rlhf_core.errors import RolloutError

from .fake_renderer import BOS_ID, EOS_ID, PAD_ID, FakeRenderer

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["BOS_ID", "EOS_ID", "PAD_ID", "FakeEngine", "FakeRenderer", "Script", "WholeModel"]

Script = Callable[[GenerationRequest, int], str]
"""``script(request, index)`` returns the response for ``request.seeds[index]``, without end-of-sequence."""


class FakeEngine:
    """Engine without a model, which writes random lower-case letters, a function of the seed alone, or a script's text.

    The engine records its requests and honors stop strings and the token limit. Every token of a response has a
    different log-prob (``-(index + 1) / 1024``, exact in float32), so that a test can follow each token. It sleeps as
    an engine may that loses its weights: asleep it refuses requests, and wakes only after an update.
    """

    shares_weights = False

    def __init__(
        self, script: Script | None = None, *, mean_length: int = 8, delay_s: float = 0.0
    ) -> None:
        self.requests: list[GenerationRequest] = []
        self.version = 0
        self.in_flight = 0
        self.is_asleep = False
        self.has_weights = True
        """False: it fell asleep, and no update has come since."""
        self._script = script
        self._mean_length = mean_length
        self._delay_s = delay_s
        self._renderer = FakeRenderer()

    async def start(self, spec: EngineSpec, source: WeightSource) -> None: ...

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, in the order of the seeds."""
        if self.is_asleep:
            raise RolloutError(
                f"generate for {request.uid}: the engine is asleep; call wake first",
                code="engine/asleep",
            )
        self.requests.append(request)
        self.in_flight += 1
        try:
            await asyncio.sleep(self._delay_s)
            return [self._complete(request, index) for index in range(len(request.seeds))]
        finally:
            self.in_flight -= 1

    async def update_weights(self, version: int, source: WeightSource) -> None:
        self.version, self.has_weights = version, True

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def sleep(self) -> None:
        if self.is_asleep or self.in_flight:
            why = "it is asleep already" if self.is_asleep else f"{self.in_flight} requests run"
            raise RolloutError(f"sleep: {why}", code="engine/wrong-state")
        self.is_asleep, self.has_weights = True, False

    async def wake(self) -> None:
        if not self.is_asleep or not self.has_weights:
            why = "its weights are gone" if self.is_asleep else "it is awake"
            raise RolloutError(
                f"wake: {why}; expected a sleeping engine that had an update",
                code="engine/wrong-state",
            )
        self.is_asleep = False

    async def checksum(self) -> str:
        return f"fake-{self.version}"

    async def close(self) -> None: ...

    def _complete(self, request: GenerationRequest, index: int) -> Completion:
        text = self._text(request, index)
        stop = Stop.EOS
        fewest = request.sampling.min_new_tokens  # of one character each
        for mark in request.sampling.stop:
            if (found := text.find(mark, max(0, fewest - len(mark) + 1))) >= 0:
                text, stop = text[: found + len(mark)], Stop.STRING
        tokens = self._renderer.encode(text) + ([EOS_ID] if stop is Stop.EOS else [])
        limit = request.sampling.max_new_tokens
        if len(tokens) > limit:
            tokens, stop = tokens[:limit], Stop.LENGTH
        count = len(tokens)
        return Completion(
            token_ids=np.array(tokens, dtype=np.int32),
            logprobs=np.arange(-1, -count - 1, -1, dtype=np.float32) / np.float32(1024),
            weight_version=np.full(count, self.version, dtype=np.int32),
            stop=stop,
        )

    def _text(self, request: GenerationRequest, index: int) -> str:
        if self._script is not None:
            return self._script(request, index)
        draw = np.random.Generator(np.random.Philox(request.seeds[index]))
        length = 1 + int(draw.geometric(1 / self._mean_length))
        return "".join(map(chr, draw.integers(ord("a"), ord("z") + 1, size=length)))


class WholeModel:
    """Model adapter that leaves the model as it is and trains all of it. Tests subclass it to vary one call."""

    served_rank: int | None = None

    def __init__(self, config: Config) -> None: ...

    def load_options(self) -> Mapping[str, Any]:
        return {}

    def wrap(self, model: nn.Module, seed: int) -> nn.Module:
        return model

    def disabled(self, model: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def training(self, model: nn.Module, seed: int) -> AbstractContextManager[None]:
        return nullcontext()

    def factors(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        raise AssertionError("the served rank is None")

    def merged_weights(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        yield from model.state_dict().items()

    def save(self, model: nn.Module, folder: str) -> None: ...
