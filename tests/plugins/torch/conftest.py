"""Trajectories, a plain loss and a plain optimizer, for tests of the torch backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlhf_core import Component, Config, Registered
from rlhf_core.contracts import (
    ComponentRef,
    Correction,
    LossInputs,
    Normalizers,
    ParameterGroup,
    PolicyObjective,
    RoleSpec,
    StepPlan,
    TokenLoss,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.plugins import Plugins, empty
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_plugin_algorithms.kl.k2 import k2
from rlhf_plugin_algorithms.kl.k3 import k3
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.fakes import WholeModel

VOCAB = 100


class PolicyGradient:
    """-A * ratio: its gradient at ratio 1 is REINFORCE's."""

    def __init__(self, config: Config) -> None: ...

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        ratio = (inputs.policy_logprobs - inputs.old_logprobs).exp()
        self.seen = inputs
        return TokenLoss(loss=-inputs.advantages * ratio)


class HalfWeights:
    """Weight 0.5 everywhere; drops the first token of each row."""

    def __init__(self, config: Config) -> None: ...

    def __call__(self, old_logprobs: Any, rollout_logprobs: Any, action_mask: Any) -> Correction:
        keep = action_mask.clone()
        keep[:, 0] = False
        return Correction(weights=torch.full_like(old_logprobs, 0.5), keep=keep)


class PlainAdamW:
    def __init__(self, config: Config) -> None: ...

    def parameter_groups(self, named_parameters: Any) -> list[ParameterGroup]:
        return [ParameterGroup(name="all", named_parameters=tuple(named_parameters))]

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [{"params": [p for _, p in group.named_parameters]} for group in groups],
            lr=1e-3,
            weight_decay=0.1,
        )


class Sgd(PlainAdamW):
    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for group in groups for _, p in group.named_parameters], lr=1.0)


class FastAdam(PlainAdamW):
    """Moves what has a gradient and nothing else."""

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for group in groups for _, p in group.named_parameters], lr=1e-2)


class Float32Norms(WholeModel):
    """A model adapter that keeps the gains of norms in float32, as some families do."""

    def wrap(self, model: nn.Module, seed: int) -> nn.Module:
        for module in model.modules():
            if type(module).__name__.endswith("Norm"):
                module.float().register_forward_hook(_as_its_input)
        return model


def _as_its_input(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    del module
    return output.to(inputs[0].dtype)


# Names by which roles refer to the components above.
LOSS = ComponentRef(kind="rlhf_policy_losses", name="test:policy_gradient")
OWN_WEIGHTS = ComponentRef(kind="rlhf_policy_losses", name="test:own_weights")
HALF = ComponentRef(kind="rlhf_is_corrections", name="test:half")
ADAMW = ComponentRef(kind="rlhf_optimizers", name="test:adamw")
K1, K2, K3 = (
    ComponentRef(kind="rlhf_kl_estimators", name=f"test:{name}") for name in ("k1", "k2", "k3")
)
SGD = ComponentRef(kind="rlhf_optimizers", name="test:sgd")
FAST_ADAM = ComponentRef(kind="rlhf_optimizers", name="test:fast_adam")
FLOAT32_NORMS = ComponentRef(kind="rlhf_model_adapters", name="test:float32_norms")


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    loaded = empty()
    for ref, factory, provides in (
        (LOSS, PolicyGradient, ()),
        (OWN_WEIGHTS, PolicyGradient, ("applies_is_weights",)),
        (HALF, HalfWeights, ()),
        (ADAMW, PlainAdamW, ()),
        (SGD, Sgd, ()),
        (K1, lambda config: k1, ()),
        (K2, lambda config: k2, ()),
        (K3, lambda config: k3, ()),
        (FAST_ADAM, FastAdam, ()),
        (FLOAT32_NORMS, Float32Norms, ()),
    ):
        component = Component(
            name=ref.name.partition(":")[2], factory=factory, provides=frozenset(provides)
        )
        loaded.registries[ref.kind].add(Registered(component, "test"))
    return loaded


def make_trajectories(num: int = 6, seed: int = 0) -> TrajectoryColumns:
    """Rows of 5 to 25 tokens; every third has two turns with environment text between them."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in range(num):
        prompt, first, gap, second = rng.integers(2, 8), rng.integers(3, 10), 3, 4
        turns = [Turn(start=int(prompt), end=int(prompt + first))]
        length = int(prompt + first)
        if row % 3 == 2:
            turns.append(Turn(start=length + gap, end=length + gap + second))
            length += gap + second
        mask = np.zeros(length, dtype=bool)
        for turn in turns:
            mask[turn.start : turn.end] = True
        rows.append(
            Trajectory(
                uid=Uid(0, row),
                token_ids=rng.integers(4, VOCAB, length).astype(np.int32),
                action_mask=mask,
                rollout_logprobs=rng.normal(-2, 0.1, mask.sum()).astype(np.float32),
                weight_version=np.zeros(mask.sum(), dtype=np.int32),
                turns=tuple(turns),
                reward=1.0,
            )
        )
    return TrajectoryColumns.from_trajectories(rows)


def make_batch(num: int = 6, seed: int = 0) -> TrainBatch:
    trajectories = make_trajectories(num, seed)
    rng = np.random.default_rng(seed + 1)
    size = int(trajectories.num_actions.sum())
    columns = {
        "advantages": rng.normal(size=size),
        "old_logprobs": rng.normal(-4.6, 0.3, size=size),
        "ref_logprobs": rng.normal(-4.6, 0.3, size=size),
        "values": rng.normal(size=size),
        "returns": rng.normal(size=size),
    }
    plain = {name: column.astype(np.float32) for name, column in columns.items()}
    plain["rollout_logprobs"] = trajectories.rollout_logprobs
    return TrainBatch(trajectories=trajectories, columns=plain)


def make_plan(batch: TrainBatch, **changes: Any) -> StepPlan:
    trajectories = batch.trajectories
    totals = Normalizers(
        num_actions=int(trajectories.num_actions.sum()),
        num_sequences=len(trajectories),
        max_actions=20,
    )
    return replace(StepPlan(normalizers=totals, on_policy=True), **changes)


def make_spec(path: Path, **changes: Any) -> RoleSpec:
    spec = RoleSpec(
        role="policy",
        model_path=str(path),
        objective=PolicyObjective(loss=LOSS, aggregation="token-mean"),
        optimizer=ADAMW,
    )
    return replace(spec, **changes)


def gradients(backend, batch, plan):
    """Do one SGD step of learning rate 1 and return how each weight moved, with the sign of the gradient."""
    weights = dict(backend._model.named_weights())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    metrics = backend.train_step(batch, plan).metrics
    return {name: before[name] - weight.detach() for name, weight in weights.items()}, metrics


@pytest.fixture(name="refs", scope="session")
def _refs() -> SimpleNamespace:
    return SimpleNamespace(
        loss=LOSS,
        own_weights=OWN_WEIGHTS,
        half=HALF,
        adamw=ADAMW,
        sgd=SGD,
        k1=K1,
        k2=K2,
        k3=K3,
        fast_adam=FAST_ADAM,
        float32_norms=FLOAT32_NORMS,
    )


@pytest.fixture(name="make_trajectories", scope="session")
def _make_trajectories() -> Callable[..., TrajectoryColumns]:
    return make_trajectories


@pytest.fixture(name="make_batch", scope="session")
def _make_batch() -> Callable[..., TrainBatch]:
    return make_batch


@pytest.fixture(name="make_plan", scope="session")
def _make_plan() -> Callable[..., StepPlan]:
    return make_plan


@pytest.fixture(name="make_spec", scope="session")
def _make_spec() -> Callable[..., RoleSpec]:
    return make_spec


@pytest.fixture(scope="session")
def steps() -> Callable[[TorchBackend, Iterable[int]], list[dict[str, float]]]:
    """Take a train step on the batch of each seed, and return the metrics of each step."""

    def take(backend: TorchBackend, seeds: Iterable[int]) -> list[dict[str, float]]:
        out = []
        for seed in seeds:
            batch = make_batch(seed=seed)
            metrics = backend.train_step(batch, make_plan(batch)).metrics
            out.append({name: metric.value() for name, metric in metrics.items()})
        return out

    return take


@pytest.fixture
def start(plugins: Plugins):
    """Build a backend for a spec; options are those of ``TorchBackendConfig``."""

    def build(spec: RoleSpec, **options: Any) -> TorchBackend:
        backend = TorchBackend(TorchBackendConfig(device="cpu", **options))
        backend.setup(spec, plugins)
        return backend

    return build


@pytest.fixture
def sgd_spec(make_spec, refs):
    """A role whose update is its gradient."""

    def make(path, *, loss=refs.loss, aggregation="token-mean", max_tokens=16384, **terms):
        return make_spec(
            path,
            objective=PolicyObjective(loss=loss, aggregation=aggregation, **terms),
            optimizer=refs.sgd,
            max_grad_norm=None,
            max_tokens_per_micro_batch=max_tokens,
        )

    return make
