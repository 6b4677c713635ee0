"""A tiny language model, its plain forward pass, and plain components, for the checks of backends and engines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.component import Component, ComponentRef, Config, Registered
from rlhf_core.contracts.backend import Normalizers, StepPlan, TrainBatch
from rlhf_core.contracts.correction import Correction
from rlhf_core.contracts.functions.kl import KlEstimator
from rlhf_core.contracts.loss import LossInputs, TokenLoss
from rlhf_core.contracts.optimizer import ParameterGroup
from rlhf_core.contracts.preference import PreferenceInputs, PreferenceResult
from rlhf_core.plugins import Plugins, empty

from ..tiny import write_tiny_model
from .columns import EOS_ID, PAD_ID, trajectory

MAX_ACTIONS = 12
"""Constant length of the reduction ``seq-mean-token-sum-norm``."""
LEARNING_RATE = 0.05
GAIN_SHARE = 0.2
"""Share of that rate for gains under ``TWO_RATES``."""
PROMPT = 6
"""Number of tokens of the prompts that samples share."""


@contextmanager
def tiny_model(*, tied: bool = True, family: str = "qwen3") -> Iterator[Path]:
    """Yield a folder with a random causal LM with distributions far from even; the folder is removed at the end."""
    with tempfile.TemporaryDirectory() as folder, _without_progress_bars():
        yield write_tiny_model(Path(folder) / "model", family, initializer_range=0.3, tied=tied)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOutputs:
    """Log-probs, entropies and sums of squares of the actions of a batch, and whether each is the most probable token,
    (sum of A,) each."""

    logprobs: Tensor
    entropies: Tensor
    sum_pi_squared: Tensor
    is_top1: Tensor


class PlainModel:
    """A model as Transformers loads it, one sequence at a time, without packing or a cache."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def logits(self, tokens: Any) -> Tensor:
        """Return the logits (T, V) of a sequence."""
        ids = torch.as_tensor(np.asarray(tokens, dtype=np.int64))[None]
        found: Tensor = self.model(input_ids=ids).logits[0].float()
        return found

    def outputs(self, batch: TrajectoryColumns, temperature: float = 1.0) -> PlainOutputs:
        """Return the results for every action, from the distribution at the token before it, after the temperature."""
        parts, columns = [], batch.tokens.read()
        for row in range(len(batch)):
            span = slice(columns.token_offsets[row], columns.token_offsets[row + 1])
            tokens, mask = columns.token_ids[span], columns.action_mask[span]
            actions = torch.from_numpy(np.flatnonzero(mask))
            logits = self.logits(tokens)[actions - 1] / temperature
            logprobs = logits.log_softmax(-1)  # (A, V)
            chosen = torch.from_numpy(tokens.astype(np.int64))[actions]
            taken = logprobs.gather(1, chosen[:, None])[:, 0]
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            top = (logits.argmax(-1) == chosen).float()
            parts.append(torch.stack([taken, entropy, (2 * logprobs).exp().sum(-1), top]))
        taken, entropy, squares, top = torch.cat(parts, dim=1)
        return PlainOutputs(logprobs=taken, entropies=entropy, sum_pi_squared=squares, is_top1=top)

    def descend(self, loss: Tensor) -> None:
        """Do one update by the gradient of the loss, as ``PlainSgd`` does."""
        loss.backward()
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= LEARNING_RATE * parameter.grad
                    parameter.grad = None

    def parameters(self) -> dict[str, Tensor]:
        """By name, tied ones under the first of their names."""
        return dict(self.model.named_parameters())

    def state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.model.state_dict()
        return state


class PolicyGradient:
    """Policy loss -A * ratio, whose gradient at ratio 1 is REINFORCE's; it records its inputs."""

    seen: list[LossInputs]

    def __init__(self, config: Config) -> None:
        del config
        self.seen = []

    def __call__(self, inputs: LossInputs) -> TokenLoss:
        self.seen.append(inputs)
        ratio = (inputs.policy_logprobs - inputs.old_logprobs).exp()
        return TokenLoss(loss=-inputs.advantages * ratio)


def half_weights(old_logprobs: Tensor, rollout_logprobs: Tensor, action_mask: Tensor) -> Correction:
    """Correction with weight 0.5 everywhere, which drops the first action of each row."""
    keep = action_mask.clone()
    keep[:, 0] = False
    return Correction(weights=torch.full_like(old_logprobs, 0.5), keep=keep)


def log_ratio_kl(log_ratio: Tensor) -> Tensor:
    """KL estimator ``l``."""
    return log_ratio


def half_square_kl(log_ratio: Tensor) -> Tensor:
    """KL estimator ``l^2 / 2``, with the tangents at 10 as numbers."""
    tangent = 4.472136 * log_ratio.abs() - 10.0
    return torch.where(log_ratio.abs() > 4.472136, tangent, log_ratio.square() / 2)


def exponential_kl(log_ratio: Tensor) -> Tensor:
    """KL estimator ``exp(-l) - 1 + l``, with the tangent at 10 as a number."""
    tangent = 10.0 - 12.610869 * (log_ratio + 2.610869)
    inner = (-log_ratio).exp() - 1 + log_ratio
    return torch.where(log_ratio < -2.610869, tangent, inner)


def plain_preference(inputs: PreferenceInputs) -> PreferenceResult:
    """Preference loss ``-log sigmoid`` of a pair's difference of log-probs."""
    chosen, rejected = inputs.chosen.policy, inputs.rejected.policy
    return PreferenceResult(
        loss=-torch.nn.functional.logsigmoid((chosen - rejected) / 10),
        chosen_rewards=chosen.detach(),
        rejected_rewards=rejected.detach(),
    )


class PlainSgd:
    """Optimizer whose update is minus the learning rate times the gradient."""

    def __init__(self, config: Config) -> None:
        del config

    def parameter_groups(self, named_parameters: Any) -> list[ParameterGroup]:
        return [ParameterGroup(name="all", named_parameters=tuple(named_parameters))]

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(_parameters(groups), lr=LEARNING_RATE)


class PlainAdamW(PlainSgd):
    """Without weight decay, so that nothing moves but by its gradient."""

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(_parameters(groups), lr=1e-2, weight_decay=0.0)


class TwoRates(PlainSgd):
    """Gains have a learning rate of their own."""

    def parameter_groups(self, named_parameters: Any) -> list[ParameterGroup]:
        pairs = list(named_parameters)
        return [
            ParameterGroup(
                name=name,
                named_parameters=tuple(pair for pair in pairs if ("norm" in pair[0]) == own),
            )
            for name, own in (("others", False), ("gains", True))
        ]

    def create(self, groups: Any) -> torch.optim.Optimizer:
        rates = (LEARNING_RATE, GAIN_SHARE * LEARNING_RATE)
        each = zip(groups, rates, strict=True)
        return torch.optim.SGD([{"params": _parameters([one]), "lr": lr} for one, lr in each])


def _parameters(groups: Any) -> list[Any]:
    return [parameter for group in groups for _, parameter in group.named_parameters]


LOSS = ComponentRef(kind="rlhf_policy_losses", name="plain:policy_gradient")
MEAN_READER = ComponentRef(kind="rlhf_policy_losses", name="plain:mean_reader")
"""The same loss, which needs ``mean_logprobs``."""
PREFERENCE = ComponentRef(kind="rlhf_preference_losses", name="plain:preference")
CORRECTION = ComponentRef(kind="rlhf_is_corrections", name="plain:half_weights")
LOG_RATIO = ComponentRef(kind="rlhf_kl_estimators", name="plain:log_ratio")
HALF_SQUARE = ComponentRef(kind="rlhf_kl_estimators", name="plain:half_square")
EXPONENTIAL = ComponentRef(kind="rlhf_kl_estimators", name="plain:exponential")
KL_ESTIMATORS: tuple[tuple[ComponentRef, KlEstimator], ...] = (
    (LOG_RATIO, log_ratio_kl),
    (HALF_SQUARE, half_square_kl),
    (EXPONENTIAL, exponential_kl),
)
SGD = ComponentRef(kind="rlhf_optimizers", name="plain:sgd")
ADAMW = ComponentRef(kind="rlhf_optimizers", name="plain:adamw")
TWO_RATES = ComponentRef(kind="rlhf_optimizers", name="plain:two_rates")


def plain_plugins(loss: PolicyGradient | None = None) -> Plugins:
    """Return plugins with the plain components alone; ``loss`` is the instance that backends get."""
    plugins = empty()
    held = loss or PolicyGradient(Config())
    for ref, factory in (
        (LOSS, _giving(held)),
        (MEAN_READER, _giving(held)),
        (PREFERENCE, _giving(plain_preference)),
        (CORRECTION, _giving(half_weights)),
        *((ref, _giving(estimator)) for ref, estimator in KL_ESTIMATORS),
        (SGD, PlainSgd),
        (ADAMW, PlainAdamW),
        (TWO_RATES, TwoRates),
    ):
        needs = frozenset({"mean_logprobs"} if ref == MEAN_READER else ())
        name = ref.name.partition(":")[2]
        component: Component[Any] = Component(name=name, factory=factory, needs=needs)
        plugins.registries[ref.kind].add(Registered(component, "plain"))
    return plugins


def _giving(component: Any) -> Callable[[Config], Any]:
    return lambda config: component


def rollouts() -> TrajectoryColumns:
    """Return rows of one and two turns that end with end-of-sequence, one with the padding token as an action."""
    rows = [
        trajectory(Uid(0, 0), (4,), prompt=2),
        trajectory(Uid(0, 1), (2, 5), prompt=6),
        trajectory(Uid(0, 2), (1,), prompt=3),
        trajectory(Uid(0, 3), (7,), prompt=1, last_token=PAD_ID),
        trajectory(Uid(0, 4), (3, 1, 2), prompt=4, last_token=EOS_ID),
    ]
    return TrajectoryColumns.from_trajectories(rows)


def samples_of_prompts() -> TrajectoryColumns:
    """Return three samples of one prompt and two of another prompt of the same length with other tokens."""
    rows = []
    for prompt, samples in enumerate((3, 2)):
        shared = trajectory(Uid(0, 50 + prompt), prompt=PROMPT).token_ids[:PROMPT]
        for sample in range(samples):
            row = trajectory(Uid(0, prompt, sample), (2 + sample, 3), prompt=PROMPT)
            row.token_ids[:PROMPT] = shared
            rows.append(row)
    return TrajectoryColumns.from_trajectories(rows)


def train_batch(rows: TrajectoryColumns | None = None) -> TrainBatch:
    """Return rows with advantages of both signs and a reference that is not the policy."""
    rows = rollouts() if rows is None else rows
    draw, size = np.random.default_rng(3), int(rows.num_actions.sum())
    columns = {
        "advantages": draw.normal(size=size).astype(np.float32),
        "ref_logprobs": draw.uniform(-6.0, -1.0, size=size).astype(np.float32),
        "rollout_logprobs": rows.rollout_logprobs,
    }
    return TrainBatch(trajectories=rows, columns=columns)


def value_batch() -> TrainBatch:
    """Return rows with values of 0 and returns of 1."""
    rows = rollouts()
    zeros = np.zeros(int(rows.num_actions.sum()), dtype=np.float32)
    return TrainBatch(trajectories=rows, columns={"values": zeros, "returns": zeros + 1.0})


def step_plan(rows: TrajectoryColumns, **changes: Any) -> StepPlan:
    """Return the plan of an on-policy step over all of ``rows``."""
    totals = Normalizers(
        num_actions=int(rows.num_actions.sum()), num_sequences=len(rows), max_actions=MAX_ACTIONS
    )
    return replace(StepPlan(normalizers=totals, on_policy=True), **changes)
