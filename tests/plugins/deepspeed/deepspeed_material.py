"""Components, trajectories and plans for the tests of the DeepSpeed backend and for the ranks that they start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_core import Component, Config, Registered
from rlhf_core.capabilities import UNPAIRED_ANSWERS
from rlhf_core.contracts import (
    ROW_WEIGHTS,
    ComponentRef,
    LossInputs,
    Normalizers,
    ParameterGroup,
    PreferenceInputs,
    PreferenceResult,
    StepPlan,
    TokenLoss,
    TopTokens,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.contracts.backend import TRAINED
from rlhf_core.plugins import Plugins, empty
from rlhf_plugin_algorithms.kl.k3 import k3
from rlhf_plugin_algorithms.optimizers import MuonConfig
from rlhf_plugin_algorithms.optimizers.muon import Muon
from rlhf_plugin_lora import rlhf_model_adapters
from rlhf_testing.fakes import WholeModel


class PolicyGradient:
    """-A * ratio: its gradient at ratio 1 is REINFORCE's."""

    def __init__(self, config: Config) -> None: ...

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        ratio = (inputs.policy_logprobs - inputs.old_logprobs).exp()
        return TokenLoss(loss=-inputs.advantages * ratio)


class Breaking(PolicyGradient):
    """The same, until it breaks in this process."""

    is_broken = False

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        if Breaking.is_broken:
            raise ValueError("this loss is broken")
        return super().__call__(inputs)


class Distilling:
    """Cross entropy with the teacher's most probable tokens."""

    def __init__(self, config: Config) -> None: ...

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        teacher = inputs.teacher_top_logprobs.exp()
        return TokenLoss(loss=-(teacher * inputs.policy_top_logprobs).sum(-1))


class Paired:
    """-log sigmoid of the difference of the log-ratios of a pair."""

    def __init__(self, config: Config) -> None: ...

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio
        return PreferenceResult(
            loss=-nn.functional.logsigmoid(chosen - rejected),
            chosen_rewards=chosen.detach(),
            rejected_rewards=rejected.detach(),
        )


class Single:
    """The log-prob per token of each answer, with the sign of its label."""

    def __init__(self, config: Config) -> None: ...

    def __call__(self, inputs: PreferenceInputs) -> PreferenceResult:
        chosen, rejected = inputs.chosen, inputs.rejected
        return PreferenceResult(
            loss=torch.cat(
                [-chosen.policy / chosen.num_tokens, rejected.policy / rejected.num_tokens]
            ),
            chosen_rewards=chosen.policy.detach(),
            rejected_rewards=rejected.policy.detach(),
        )


class AdamW:
    def __init__(self, config: Config) -> None: ...

    def parameter_groups(self, named: Any) -> list[ParameterGroup]:
        named = list(named)
        matrices = tuple(pair for pair in named if pair[1].dim() >= 2)
        others = tuple(pair for pair in named if pair[1].dim() < 2)
        groups = [
            ParameterGroup(name="decay", named_parameters=matrices, options={"weight_decay": 0.1}),
            ParameterGroup(name="none", named_parameters=others, options={"weight_decay": 0.0}),
        ]
        return [group for group in groups if group.named_parameters]

    def create(self, groups: Any) -> torch.optim.Optimizer:
        # An eps of this size keeps the update a smooth function of the gradient: with a tiny one, elements whose
        # gradient is rounding noise would move by the whole learning rate, in a direction of chance.
        return torch.optim.AdamW(self.plain(groups), lr=1e-2, eps=1e-3)

    def plain(self, groups: Any) -> list[dict[str, Any]]:
        return [
            {"params": [p for _, p in group.named_parameters], **group.options} for group in groups
        ]


class Adam(AdamW):
    """Moves what has a gradient and nothing else."""

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for group in groups for _, p in group.named_parameters], lr=1e-2)


class Sgd(AdamW):
    """A step is the gradient itself."""

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for group in groups for _, p in group.named_parameters], lr=1.0)


class Lamb(AdamW):
    """Moves each matrix in proportion to its norm, which a flattened group does not have; AdamW moves the rest."""

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return _Lamb(self.plain(groups), {"lr": 1e-2})


class _Lamb(torch.optim.Optimizer):
    """Keeps an average, and the number of updates."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                    state["step"] = torch.tensor(0.0)
                    state["kind"] = "lamb"
                state["step"] += 1
                state["average"].lerp_(parameter.grad, 0.1)
                move = state["average"] / (1 - 0.9 ** float(state["step"]))
                ratio = parameter.norm() / (move.norm() + 1e-3) if group["weight_decay"] else 1.0
                parameter -= group["lr"] * ratio * move


class Rows(AdamW):
    """Keeps a number for each row of a matrix."""

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(self.plain(groups), lr=1e-2)


class HiddenMuon(Muon):
    """Muon with a learning rate that shows."""

    def __init__(self, config: Config) -> None:
        super().__init__(MuonConfig(lr=1e-2, weight_decay=0.1, adam_eps=1e-3))


class SeparateExperts(nn.ModuleList):
    """Experts as modules of their own, called only where a token goes to them."""

    def __init__(self, stacked: nn.Module) -> None:
        pairs = zip(stacked.gate_up_proj.unbind(), stacked.down_proj.unbind(), strict=True)
        super().__init__(Expert(up, down) for up, down in pairs)

    def forward(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> Any:
        output = torch.zeros_like(hidden)
        for number, expert in enumerate(self):
            token, place = torch.where(index == number)
            if len(token):
                found = expert(hidden[token]) * weights[token, place, None]
                output = output.index_add(0, token, found)
        return output


class Expert(nn.Module):
    def __init__(self, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.up = nn.Parameter(up.detach().clone())
        self.down = nn.Parameter(down.detach().clone())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = (hidden @ self.up.T).chunk(2, dim=-1)
        return (nn.functional.silu(gate) * up) @ self.down.T


class Routed(nn.Module):
    """A block of experts of a class that DeepSpeed does not know by name."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.gate, self.experts = block.gate, SeparateExperts(block.experts)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.flatten(0, -2)
        _, weights, index = self.gate(tokens)
        return self.experts(tokens, index, weights).view_as(hidden)


class Separated(WholeModel):
    """A model adapter that takes stacked experts apart."""

    def wrap(self, model: nn.Module, seed: int) -> nn.Module:
        for layer in model.model.layers:
            layer.mlp = Routed(layer.mlp)
        return model


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


def _ref(kind: str, name: str) -> ComponentRef:
    return ComponentRef(kind=kind, name=f"test:{name}")


def adapter(name: str, **options: Any) -> ComponentRef:
    """Refer to an adapter of ``rlhf-plugin-lora``."""
    return ComponentRef(kind="rlhf_model_adapters", name=f"lora:{name}", options=options)


LOSS = _ref("rlhf_policy_losses", "policy_gradient")
BREAKING = _ref("rlhf_policy_losses", "breaking")
EXPONENTIAL = _ref("rlhf_kl_estimators", "exponential")
DISTILLING = _ref("rlhf_policy_losses", "distilling")
PAIRED = _ref("rlhf_preference_losses", "paired")
SINGLE = _ref("rlhf_preference_losses", "single")
SEPARATED = _ref("rlhf_model_adapters", "separated")
FLOAT32_NORMS = _ref("rlhf_model_adapters", "float32_norms")
OPTIMIZERS = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": Sgd,
    "lamb": Lamb,
    "rows": Rows,
    "muon": HiddenMuon,
}
ADAMW, ADAM, SGD, LAMB, ROWS, MUON = (_ref("rlhf_optimizers", name) for name in OPTIMIZERS)

KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "whole": {"optimizer": LAMB},
    "whole_bfloat16": {"optimizer": LAMB, "dtype": "bfloat16"},
}
"""Runs that stop and go on: what their role has of its own."""


def plain_plugins() -> Plugins:
    loaded = empty()
    losses = ((LOSS, PolicyGradient), (BREAKING, Breaking), (DISTILLING, Distilling))
    optimizers = ((_ref("rlhf_optimizers", name), kind) for name, kind in OPTIMIZERS.items())
    adapters = ((SEPARATED, Separated), (FLOAT32_NORMS, Float32Norms))
    for ref, factory in (*losses, *optimizers, *adapters, (EXPONENTIAL, lambda config: k3)):
        component: Component[Any] = Component(name=ref.name.partition(":")[2], factory=factory)
        loaded.registries[ref.kind].add(Registered(component, "test"))
    for component in rlhf_model_adapters():
        loaded.registries["rlhf_model_adapters"].add(Registered(component, "lora"))
    preferences = loaded.registries["rlhf_preference_losses"]
    single: Component[Any] = Component(
        name="single", factory=Single, provides=frozenset({UNPAIRED_ANSWERS})
    )
    for component in (Component(name="paired", factory=Paired), single):
        preferences.add(Registered(component, "test"))
    return loaded


def make_trajectories(num: int = 6, seed: int = 0, samples: int = 1) -> TrajectoryColumns:
    """Rows of 5 to 25 tokens; every third has two turns with environment text between them. So many rows next to each
    other begin with the same prompt."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in range(num):
        own, first = int(rng.integers(2, 8)), int(rng.integers(3, 10))
        prompt = rows[-1].turns[0].start if row % samples else own
        turns = [Turn(start=prompt, end=prompt + first)]
        if row % 3 == 2:
            turns.append(Turn(start=prompt + first + 3, end=prompt + first + 7))
        mask = np.zeros(turns[-1].end, dtype=bool)
        for turn in turns:
            mask[turn.start : turn.end] = True
        count = int(mask.sum())
        tokens = rng.integers(4, 90, len(mask)).astype(np.int32)
        if row % samples:
            tokens[:prompt] = rows[-1].token_ids[:prompt]
        rows.append(
            Trajectory(
                uid=Uid(0, row // samples, row % samples),
                token_ids=tokens,
                action_mask=mask,
                rollout_logprobs=rng.normal(-2, 0.1, count).astype(np.float32),
                weight_version=np.zeros(count, dtype=np.int32),
                turns=tuple(turns),
                reward=1.0,
            )
        )
    return TrajectoryColumns.from_trajectories(rows)


def make_batch(
    seed: int = 0, num: int = 6, *, supervised: bool = False, top: int = 0, samples: int = 1
) -> TrainBatch:
    rows = make_trajectories(num, seed, samples)
    rng = np.random.default_rng(seed + 1)
    size = int(rows.num_actions.sum())
    drawn = {
        "advantages": rng.normal(size=size),
        "old_logprobs": rng.normal(-4.6, 0.3, size=size),
        "ref_logprobs": rng.normal(-4.6, 0.3, size=size),
        "values": rng.normal(size=size),
        "returns": rng.normal(size=size),
    }
    return TrainBatch(
        trajectories=rows,
        columns={name: column.astype(np.float32) for name, column in drawn.items()},
        teacher_top=_top_tokens(rng, size, top) if top else None,
        supervised=make_trajectories(3, seed + 7) if supervised else None,
    )


def every_third_left_out(batch: TrainBatch) -> TrainBatch:
    """The batch whose policy loss trains on two of three actions."""
    trained = np.arange(len(batch.columns["advantages"])) % 3 > 0
    return replace(batch, columns={**batch.columns, TRAINED: trained.astype(np.float32)})


def routed(batch: TrainBatch) -> TrainBatch:
    """The batch with two of four experts for each token but the last of a row, in two layers."""
    rows = batch.trajectories
    columns = rows.tokens.read()
    shape = (len(columns.token_ids), 2, 4)
    routes = np.random.default_rng(7).random(shape).argsort(axis=-1)[..., :2].astype(np.int8)
    routes[rows.token_offsets[1:] - 1] = -1
    rows = replace(rows, tokens=replace(columns, routes=routes))
    return replace(batch, trajectories=rows)


def in_pairs(batch: TrainBatch) -> TrainBatch:
    """The batch with each two neighboring rows as an episode."""
    lengths = batch.trajectories.num_actions
    of_episode = lengths.reshape(-1, 2).sum(axis=1).repeat(2)
    weights = np.repeat((lengths / of_episode).astype(np.float32), lengths)
    return replace(batch, columns={**batch.columns, ROW_WEIGHTS: weights})


def make_answers(seed: int = 0, pairs: int = 4) -> TrainBatch:
    """Pairs of answers to a prompt each, of 5 to 25 tokens, the chosen one first."""
    batch = make_batch(seed, 2 * pairs, samples=2)
    rewards = np.tile(np.array([1.0, 0.0], dtype=np.float32), pairs)
    return TrainBatch(
        trajectories=replace(batch.trajectories, reward=rewards),
        columns={"ref_logprobs": batch.columns["ref_logprobs"]},
    )


def _top_tokens(rng: np.random.Generator, size: int, k: int) -> TopTokens:
    return TopTokens(
        token_ids=rng.integers(4, 90, (size, k)).astype(np.int32),
        logprobs=rng.normal(-2, 0.3, (size, k)).astype(np.float32),
    )


def make_plan(batch: TrainBatch, **changes: Any) -> StepPlan:
    plan = StepPlan(
        normalizers=_totals(batch.trajectories),
        supervised_normalizers=_totals(batch.supervised) if batch.supervised else None,
        on_policy=True,
    )
    return replace(plan, **changes)


def _totals(rows: TrajectoryColumns) -> Normalizers:
    return Normalizers(
        num_actions=int(rows.num_actions.sum()), num_sequences=len(rows), max_actions=20
    )
