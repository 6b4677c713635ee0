"""Training backends: one object per rank and role, which holds a model and, if it is trained, its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .metric import Metrics
from .trajectory import TrajectoryColumns

if TYPE_CHECKING:
    import torch

    from ..plugins import Plugins

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentRef:
    """A component as it crosses process boundaries: a name and plain option values, never a class."""

    kind: str
    """The hook that registers it, such as ``rlhf_policy_losses``."""
    name: str
    """Qualified: ``plugin:component``."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """Learning-rate schedule: linear warm-up, then ``name`` down to ``min_lr_ratio`` at ``total_updates``."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    warmup_updates: int = 0
    total_updates: int = 1
    min_lr_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """What the policy minimises: the policy loss, plus KL to the reference, minus entropy."""

    loss: ComponentRef
    aggregation: Aggregation
    correction: ComponentRef | None = None
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """None: no KL term in the loss."""
    entropy_coef: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueObjective:
    """What the critic minimises: half the squared error to the returns, clipped around the old values."""

    value_clip: float | None = None
    aggregation: Aggregation = "token-mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """One model of a run."""

    role: str
    """``policy``, ``critic``, ``reference``, ...: a label for logs and placement; behaviour is below."""
    model_path: str
    tokenizer_path: str | None = None
    """Whose tokenizer an export gets; None: the model's."""
    dtype: str = "float32"
    trust_remote_code: bool = False
    head: Literal["lm", "value"] = "lm"
    objective: PolicyObjective | ValueObjective | None = None
    """None: the role only scores."""
    optimizer: ComponentRef | None = None
    adapter: ComponentRef | None = None
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    max_grad_norm: float | None = 1.0
    ema_decay: float | None = None
    """Keep an exponential moving average of the weights, updated after each optimizer step."""
    temperature: float = 1.0
    """Divides the logits before log-probs and entropy, as the sampler's does."""
    max_tokens_per_micro_batch: int = 16384
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """The sequences of one optimizer step and their per-action columns."""

    trajectories: TrajectoryColumns
    columns: Mapping[str, NDArray[np.float32]]
    """(sum of A,) each: ``advantages``, and where something needs them ``old_logprobs``, ``rollout_logprobs``,
    ``ref_logprobs``, ``returns``, ``values``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalizers:
    """Totals over the whole optimizer step, all ranks included. They are what makes the gradient independent of how
    the step is cut into micro-batches."""

    num_actions: int
    num_sequences: int
    max_actions: int
    """The constant length of ``seq-mean-token-sum-norm``: the longest response that the run allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What is particular to one optimizer step."""

    normalizers: Normalizers
    kl_coef: float = 0.0
    on_policy: bool = False
    """True when the weights have not changed since the batch's old log-probs were defined: the loss then takes
    the policy's own (detached) log-probs as the old ones, and no extra pass is needed."""


class TrainBackend(Protocol):
    """One rank of one role. A factory is called as ``factory(config)``, then ``setup`` once."""

    def setup(self, spec: RoleSpec, plugins: Plugins) -> None:
        """Load the model, make the optimizer."""
        ...

    def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) log-probability of each action. No gradient."""
        ...

    def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """(sum of A,) value of the state before each action. No gradient."""
        ...

    def train_step(self, batch: TrainBatch, plan: StepPlan) -> Metrics:
        """Do one optimizer step over the batch, in micro-batches of bounded size.

        A gradient that is not finite is not applied: weights and optimizer state stay untouched and the
        metric ``train/skipped_updates`` is 1.
        """
        ...

    def module(self) -> torch.nn.Module | None: ...

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]: ...

    def checksum(self) -> str:
        """Digest of the weights as ``buckets`` gives them."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that resuming exactly needs, as safetensors and JSON."""
        ...

    def load(self, folder: Path) -> None:
        """Undo ``save``, to the bit."""
        ...

    def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder (model and tokenizer)."""
        ...

    def offload(self) -> None:
        """Move what can be moved out of the accelerator's memory."""
        ...

    def reload(self) -> None: ...

    def close(self) -> None: ...
