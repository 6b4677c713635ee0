"""Tiny models behind the engine, and a weight source that shares them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.deadlines import HANG_S

from rlhf_core.contracts import (
    Completion,
    EngineSpec,
    GenerationRequest,
    SamplingParams,
    Uid,
    Vocabulary,
)
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.engine.resident import bursts
from rlhf_testing.tiny import FAMILIES, write_tiny_model
from rlhf_testing.tiny_text_families import write_tiny_text_model
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.packed.packing import PackedLayout

EOS = 2


class Source:
    """A training backend, as far as an engine can see."""

    def __init__(self, lm: CausalLM | None, state: dict[str, torch.Tensor] | None = None) -> None:
        self.lm = lm
        self.state = state if state is not None else dict(lm.model.state_dict())

    def module(self) -> torch.nn.Module | None:
        return self.lm

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        for name, tensor in self.state.items():
            yield {name: tensor}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in folders:
            write = write_tiny_model if family in FAMILIES else write_tiny_text_model
            folders[family] = write(tmp_path_factory.mktemp(family), family)
        return folders[family]

    return folder_of


@pytest.fixture(scope="session")
def lm_of(model_folder: Callable[[str], Path]) -> Callable[[str], CausalLM]:
    """The model of a family, its weights enlarged so that attention and choices matter."""
    models: dict[str, CausalLM] = {}

    def lm(family: str) -> CausalLM:
        if family not in models:
            models[family] = load_causal_lm(str(model_folder(family)), dtype="float32")
            with torch.no_grad():
                for name, parameter in models[family].named_parameters():
                    if parameter.dim() > 1:
                        parameter.mul_(6.0)
                    elif name.endswith("model.norm.weight"):
                        parameter.add_(2.0)
        return models[family]

    return lm


@pytest.fixture
def lm(lm_of: Callable[[str], CausalLM]) -> CausalLM:
    return lm_of("qwen3")


@pytest.fixture(scope="session")
def source_of() -> type[Source]:
    """Call it with a model to share, or with None and a state to copy."""
    return Source


@pytest.fixture(params=["stepwise", "resident"])
def decode(request: pytest.FixtureRequest) -> str:
    """Both ways of decoding: the contract is one."""
    return str(request.param)


@pytest.fixture
def one_token_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other coroutines run after every token, for tests that count their turns."""
    monkeypatch.setattr(bursts, "FEWEST", 1)
    monkeypatch.setattr(bursts, "MOST", 1)


@pytest.fixture
def start(model_folder: Callable[[str], Path], decode: str) -> Callable[..., EmbeddedEngine]:
    """Coroutine function: start an engine on a model."""

    async def start_engine(
        lm: CausalLM | None,
        *,
        source: Source | None = None,
        family: str = "qwen3",
        eos: tuple[int, ...] = (),
        max_length: int = 128,
        max_concurrency: int = 256,
        overlaps: bool = False,
        vocabulary: Vocabulary | None = None,
        returns_routes: bool = False,
        **options: object,
    ) -> EmbeddedEngine:
        engine = EmbeddedEngine(EmbeddedEngineConfig(**{"decode": decode, **options}))
        spec = EngineSpec(
            model_path=str(model_folder(family)),
            dtype="float32",
            max_length=max_length,
            max_concurrency=max_concurrency,
            eos_token_ids=eos,
            overlaps=overlaps,
            vocabulary=vocabulary,
            returns_routes=returns_routes,
        )
        await engine.start(spec, source or Source(lm))
        return engine

    return start_engine


@pytest.fixture
def make_request() -> Callable[..., GenerationRequest]:
    def make(
        prompt: tuple[int, ...], *, seeds: tuple[int, ...] = (1,), number: int = 0, **params: object
    ) -> GenerationRequest:
        return GenerationRequest(
            uid=Uid(0, number),
            prompt_ids=prompt,
            seeds=seeds,
            sampling=SamplingParams(**{"max_new_tokens": 12, **params}),
        )

    return make


@pytest.fixture
def run() -> Callable[..., object]:
    """Run a coroutine, with a deadline so that a hanging engine fails the test."""

    def run_it(coroutine: object, timeout_s: float = HANG_S) -> object:
        async def bounded() -> object:
            async with asyncio.timeout(timeout_s):
                return await coroutine

        return asyncio.run(bounded())

    return run_it


@pytest.fixture
def full_logits() -> Callable[..., torch.Tensor]:
    """(A, V) logits that predict a completion's tokens, from one forward pass without a cache."""

    @torch.no_grad()
    def compute(lm: CausalLM, prompt: tuple[int, ...], completion: Completion) -> torch.Tensor:
        tokens = torch.tensor(np.concatenate([prompt, completion.token_ids]))
        layout = PackedLayout([0, len(tokens)], torch.device("cpu"))
        logits = lm.logits(lm.hidden(tokens, torch.arange(len(tokens)), layout))
        return logits[len(prompt) - 1 : -1]

    return compute
