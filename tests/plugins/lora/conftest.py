"""Roles under adapters, whose factors are large enough to matter, and plain PEFT models to compare them with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins.torch.conftest import (
    ADAMW,
    FAST_ADAM,
    FLOAT32_NORMS,
    LOSS,
    SGD,
    FastAdam,
    Float32Norms,
    PlainAdamW,
    PolicyGradient,
    Sgd,
    make_batch,
    make_plan,
    make_spec,
)
from transformers import AutoModelForCausalLM

from rlhf_core import Component, Registered
from rlhf_core.contracts import ComponentRef, PolicyObjective, RoleSpec
from rlhf_core.plugins import Plugins, empty
from rlhf_plugin_algorithms import rlhf_optimizers
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_plugin_lora import rlhf_model_adapters
from rlhf_testing.tiny import FAMILIES, write_tiny_model

ADAPTERS = ("lora", "dora", "qlora")


def ref(name: str, **options: Any) -> ComponentRef:
    return ComponentRef(kind="rlhf_model_adapters", name=f"lora:{name}", options=options)


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    loaded = empty()
    for component, factory in (
        (LOSS, PolicyGradient),
        (ADAMW, PlainAdamW),
        (SGD, Sgd),
        (FAST_ADAM, FastAdam),
        (FLOAT32_NORMS, Float32Norms),
    ):
        name = component.name.partition(":")[2]
        loaded.registries[component.kind].add(
            Registered(Component(name=name, factory=factory), "test")
        )
    for adapter in rlhf_model_adapters():
        loaded.registries["rlhf_model_adapters"].add(Registered(adapter, "lora"))
    for optimizer in rlhf_optimizers():
        loaded.registries["rlhf_optimizers"].add(Registered(optimizer, "algorithms"))
    return loaded


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models of every family, with weights that are large enough for attention to matter."""
    root = tmp_path_factory.mktemp("adapted")
    return {
        family: write_tiny_model(root / family, family, initializer_range=0.2)
        for family in FAMILIES
    }


@pytest.fixture
def spec_of(models: dict[str, Path]) -> Callable[..., RoleSpec]:
    """The spec of a policy under an adapter."""

    def build(
        adapter: str | None = "lora", family: str = "qwen3", *, options: Any = None, **changes: Any
    ) -> RoleSpec:
        if adapter is not None:
            changes["adapter"] = ref(adapter, **(options or {}))
        return make_spec(models[family], **changes)

    return build


@pytest.fixture
def start(plugins: Plugins) -> Callable[..., TorchBackend]:
    """Build a backend for a spec, with factors that matter unless ``fresh``."""

    def build(spec: RoleSpec, *, fresh: bool = False, **options: Any) -> TorchBackend:
        backend = TorchBackend(TorchBackendConfig(device="cpu", **options))
        backend.setup(spec, plugins)
        if not fresh:
            stir(backend)
        return backend

    return build


@torch.no_grad()
def stir(backend: TorchBackend) -> None:
    """Move every trained parameter of the adapter, as training would. B is 0 at first."""
    generator = torch.Generator().manual_seed(3)
    for name, weight in backend._model.named_weights():
        if weight.requires_grad and not name.startswith("value_head"):
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_((0.05 * noise).to(weight.dtype))
            if backend._updater is not None and name in backend._updater.copied:
                backend._updater.masters[name].copy_(weight)


@pytest.fixture
def plain_sgd() -> dict[str, Any]:
    """Settings of a role whose update is its gradient."""
    objective = PolicyObjective(loss=LOSS, aggregation="token-mean")
    return {"objective": objective, "optimizer": SGD, "max_grad_norm": None}


@pytest.fixture
def train() -> Callable[..., list[dict[str, float]]]:
    """Take a step on the batch of each seed; return the metrics of each."""

    def take(backend: TorchBackend, seeds: Any = range(2)) -> list[dict[str, float]]:
        found = []
        for seed in seeds:
            batch = make_batch(seed=seed)
            metrics = backend.train_step(batch, make_plan(batch)).metrics
            found.append({name: metric.value() for name, metric in metrics.items()})
        return found

    return take


def trained(backend: TorchBackend) -> dict[str, torch.Tensor]:
    return {n: w.detach().clone() for n, w in backend._model.named_weights() if w.requires_grad}


def base_of(backend: TorchBackend) -> dict[str, torch.Tensor]:
    return {n: w.detach().clone() for n, w in backend._model.named_weights() if not w.requires_grad}


def plain_model(path: Path, state: Any = None) -> Any:
    """The model as Transformers has it, with other weights if some are given."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    if state is not None:
        model.load_state_dict(dict(state))
    return model


TOKENS = (torch.arange(24) * 7919 + 3) % 90 + 4


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS[None]).logits[0].float()


def own_logits(backend: TorchBackend) -> torch.Tensor:
    """Logits of the backend's model for ``TOKENS``."""
    from rlhf_torch.packed.packing import PackedLayout

    lm = backend._lm
    layout = PackedLayout([0, len(TOKENS)], lm.device)
    with torch.no_grad():
        return lm.logits(lm.hidden(TOKENS, torch.arange(len(TOKENS)), layout))
