"""Plain components and a batch of three rows, of 2, 1 and 3 actions."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_core import Component, Config, Registered
from rlhf_core.contracts import (
    ComponentRef,
    Correction,
    LossTerm,
    Metric,
    Normalizers,
    PolicyObjective,
    StepPlan,
    TokenLoss,
    TrainBatch,
    TrajectoryColumns,
    Uid,
)
from rlhf_core.objective import ActionColumns, ActionGrid, ActionScores, build_objective
from rlhf_core.plugins import empty
from rlhf_testing.conformance.columns import trajectory

LENGTHS = (2, 1, 3)
TOTALS = Normalizers(num_actions=6, num_sequences=3, max_actions=4)


class PolicyGradient:
    """-A * ratio; keeps what it was given."""

    def __init__(self, config):
        self.seen = []

    def __call__(self, inputs):
        self.seen.append(inputs)
        ratio = (inputs.policy_logprobs - inputs.old_logprobs).exp()
        return TokenLoss(loss=-inputs.advantages * ratio, metrics={"clip/fraction": Metric(1.0)})


class Square:
    """The square of the log-prob."""

    def __init__(self, config): ...

    def __call__(self, inputs):
        return TokenLoss(loss=inputs.policy_logprobs.square())


class FarTokens:
    """Weight exp(old - rollout); drops tokens whose rollout log-prob is above -0.5."""

    def __init__(self, config): ...

    def __call__(self, old_logprobs, rollout_logprobs, action_mask):
        return Correction(
            weights=(old_logprobs - rollout_logprobs).exp(),
            keep=action_mask & (rollout_logprobs <= -0.5),
            metrics={"correction/mean": Metric(2.0)},
        )


def ref(kind, name, **options):
    return ComponentRef(kind=kind, name=f"test:{name}", options=options)


@pytest.fixture(scope="session")
def refs():
    return SimpleNamespace(
        loss=ref("rlhf_policy_losses", "policy_gradient"),
        own_weights=ref("rlhf_policy_losses", "own_weights"),
        reads_entropy=ref("rlhf_policy_losses", "reads_entropy"),
        square=ref("rlhf_policy_losses", "square"),
        free=ref("rlhf_policy_losses", "free"),
        correction=ref("rlhf_is_corrections", "far_tokens"),
        k1=ref("rlhf_kl_estimators", "k1"),
        k2=ref("rlhf_kl_estimators", "k2"),
        k3=ref("rlhf_kl_estimators", "k3"),
    )


@pytest.fixture
def plugins(refs):
    loaded = empty()
    for named, factory, provides, needs in (
        (refs.loss, PolicyGradient, (), ()),
        (refs.own_weights, PolicyGradient, ("applies_is_weights",), ()),
        (refs.reads_entropy, PolicyGradient, (), ("entropy",)),
        (refs.square, Square, (), ()),
        (refs.free, Square, ("no_advantages",), ()),
        (refs.correction, FarTokens, (), ()),
        (refs.k1, lambda config: lambda log_ratio: log_ratio, (), ()),
        (refs.k2, lambda config: lambda log_ratio: log_ratio**2 / 2, (), ()),
        (refs.k3, lambda config: lambda log_ratio: torch.expm1(-log_ratio) + log_ratio, (), ()),
    ):
        component = Component(
            name=named.name.partition(":")[2],
            factory=factory,
            config=Config,
            provides=frozenset(provides),
            needs=frozenset(needs),
        )
        loaded.registries[named.kind].add(Registered(component, "test"))
    return loaded


@pytest.fixture
def built(plugins, refs) -> Callable:
    """Build a policy objective; arguments are those of ``PolicyObjective``."""

    def make(**changes):
        plain = PolicyObjective(loss=refs.loss, aggregation="token-mean")
        return build_objective(replace(plain, **changes), plugins)

    return make


@pytest.fixture
def term(refs) -> Callable:
    def make(**changes):
        return LossTerm(
            **{"loss": refs.square, "weight": 0.5, "aggregation": "token-mean", **changes}
        )

    return make


@pytest.fixture
def batch() -> TrainBatch:
    draw = np.random.default_rng(0)
    rows = TrajectoryColumns.from_trajectories(
        [trajectory(Uid(0, row), (length,)) for row, length in enumerate(LENGTHS)]
    )
    names = ("old_logprobs", "rollout_logprobs", "ref_logprobs")
    columns = {name: draw.uniform(-2.0, -0.1, size=6).astype(np.float32) for name in names}
    for name in ("advantages", "values", "returns"):
        columns[name] = draw.normal(size=6).astype(np.float32)
    return TrainBatch(trajectories=rows, columns=columns)


@pytest.fixture
def plan() -> StepPlan:
    return StepPlan(normalizers=TOTALS, kl_coef=0.3, entropy_coef=0.2)


@pytest.fixture
def leaves() -> Callable:
    """Make log-probs and entropies (6,) in float64 whose gradients can be read."""

    def make(seed=1):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(2, 6, dtype=torch.float64, generator=generator)
        logprobs = (-0.1 - 2 * drawn[0]).requires_grad_()
        return logprobs, (0.5 + drawn[1]).requires_grad_()

    return make


@pytest.fixture
def part() -> Callable:
    """Return scores and columns of some rows, given the leaves (6,) of all."""

    def make(batch, rows, logprobs, entropies, *, device="cpu"):
        rows = np.asarray(rows)
        index = torch.from_numpy(batch.trajectories.action_index(rows))
        grid = ActionGrid.of(batch.trajectories.num_actions[rows], torch.device(device))
        scores = ActionScores(logprobs=logprobs[index], entropies=entropies[index])
        return scores, ActionColumns.of(batch, rows, grid)

    return make
