"""Training backends: one object per rank and role, which holds the role's model and, if trained, its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from ..batch.metric import Metrics
from ..batch.trajectory_columns import TrajectoryColumns
from ..batch.vocabulary import Vocabulary
from ..component import ComponentRef
from ..lazy import NDArray, np
from ..media.vision import VisionSpec
from .objective import MARGIN as MARGIN
from .objective import Aggregation as Aggregation
from .objective import LossTerm as LossTerm
from .objective import Objective as Objective
from .objective import PolicyObjective as PolicyObjective
from .objective import PreferenceObjective as PreferenceObjective
from .objective import PreferenceTerm as PreferenceTerm
from .objective import RankingObjective as RankingObjective
from .objective import StepLabelObjective as StepLabelObjective
from .objective import ValueObjective as ValueObjective

if TYPE_CHECKING:
    import torch

    from ..plugins import Plugins

Leaving = Literal["nothing", "state", "all"]
"""Parts of a role that leave the accelerator's memory while an engine generates: nothing, the state of training, or the
weights too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """Learning-rate schedule of a role, as one factor for each of its updates."""

    factors: tuple[float, ...] = field(default=(1.0,), repr=False)
    """Share of the peak learning rate at each update; the last share also applies to all later updates."""
    name: str = ""
    """Name of the schedule, for messages; empty: the peak rate after the warm-up."""

    def factor(self, update: int) -> float:
        """Return the share of the peak learning rate for an update, counted from 0; beyond the end, the last share."""
        return self.factors[min(update, len(self.factors) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """One model of a run."""

    role: str
    """``policy``, ``critic``, ``reference``, ...: a label for logs and placement; the other fields say what it does."""
    model_path: str
    """Folder or hub name. For a role without an objective it may be a PEFT folder: the model is then the base that the
    folder names, with the folder's adapter beside it or merged into it."""
    tokenizer_path: str | None = None
    """Folder or hub name of the tokenizer that is exported with the model; None: the model's own."""
    dtype: str = "float32"
    """Type of the parameters: ``float32`` or ``bfloat16``."""
    trust_remote_code: bool = False
    """True: Python code that comes with the model may run."""
    head: Literal["lm", "value", "score"] = "lm"
    """``lm``: the model's own head. ``value``: a linear map, started at 0, from the hidden state before each action to
    a number. ``score``: a linear map without a bias from the hidden state at each action, as in a reward model."""
    objective: Objective | None = None
    """None: the role is not trained; it only computes log-probs, statistics or values."""
    optimizer: ComponentRef | None = None
    """None: the role is not trained."""
    adapter: ComponentRef | None = None
    """None: all weights are trained."""
    vision: VisionSpec | None = None
    """Settings for reading the images of sequences; None: sequences have no images."""
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    """Shares of the peak learning rate by update."""
    max_grad_norm: float | None = 1.0
    """Norm to which gradients are clipped; None: gradients are not clipped."""
    ema_decay: float | None = None
    """Keep an exponential moving average of the weights, updated after each optimizer step."""
    reference_sync: float | None = None
    """Keep a reference of the role's own, a float32 copy of the trained weights that begins as they are at the start:
    ``base_logprobs`` computes with it, and ``StepPlan.syncs_reference`` moves it by this share of the way to the
    weights. 1: it becomes the weights. None: there is no such copy."""
    temperature: float = 1.0
    """Divides the logits before log-probs and entropy, as the sampler's does."""
    top_temperature: float | None = None
    """Divides the logits for ``top_tokens`` and ``ActionScores.others``; None: as ``temperature``."""
    embedding_noise: float = 0.0
    """NEFTune's alpha: in the passes of an update uniform noise of up to ``alpha / sqrt(L D)`` is added to each number
    of the tokens' embeddings, with the length L of the token's sequence and the width D. 0: none."""
    router_aux_loss: float | None = None
    """Factor of the balancing loss of a mixture of experts in the loss of an update; None: as the model's configuration
    says, its ``router_aux_loss_coef`` if ``output_router_logits`` is true, else 0."""
    replays_routes: bool = False
    """True: tokens go to the experts in ``TokenColumns.routes``, weighted by the role's own routers; tokens without a
    known route go to the experts that the role chooses."""
    max_tokens_per_micro_batch: int = 16384
    """Largest number of tokens in one forward and backward pass."""
    vocabulary: Vocabulary | None = None
    """Token ids that have a probability, the same for all roles and the engine of a run; other rows of the output head
    have none. None: every row has a probability, as in a run that does not sample."""
    embedding_rows: int | None = None
    """Number of rows to which smaller embeddings grow; each new row is the mean of the model's own rows. None: the
    embeddings keep their size."""
    row_ends: tuple[int, ...] = ()
    """Tokens that end the training rows, most frequent first; an export names them as ends of turns or as places of a
    score. Empty: the role does not learn from given rows, or it learns at other places in them."""
    seed: int = 0
    """The run's seed."""
    leaving: Leaving = "nothing"
    """Parts that ``offload`` will move out in each step; a backend can allocate host memory for them at the start."""


ROW_WEIGHTS = "row_weights"
"""Name of the column of a ``TrainBatch`` with the share of an action's row in the actions of its episode. The batch has
it if an episode of the update has several rows; without it each row is an episode."""

JUDGED = "judged"
"""Name of the column of a ``TrainBatch`` that is 1 at actions whose rewards count, and 0 in groups that a reward filter
dropped. Actions with 0 train only the terms of the loss that need no advantages. Without the column all rewards
count."""

TRAINED = "trained"
"""Name of the column of a ``TrainBatch`` that is 1 at actions that the policy loss trains on, and 0 at those that it
leaves out. They count in the normalizers all the same, and every other term of the loss has them. Without the column
the policy loss trains on all actions."""

PREPARED = "prepared/"
"""Prefix of the columns of a ``TrainBatch`` that the policy loss's own ``prepare`` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """The sequences of one optimizer step and their per-action columns."""

    trajectories: TrajectoryColumns
    """For a ``PreferenceObjective`` or a ``RankingObjective`` the rows are answers, whose reward is 1 for a chosen and
    0 for a rejected one. The two answers of a pair are neighbors, the chosen one first. For a ``StepLabelObjective``
    each action is the last token of a step."""
    columns: Mapping[str, NDArray[np.float32]]
    """(sum of A,) each: ``advantages``, and those that a component needs of ``old_logprobs``, ``rollout_logprobs``,
    ``ref_logprobs``, ``teacher_logprobs``, ``returns`` and ``values``; ``row_weights`` where an episode has several
    rows; ``judged`` where the rewards of some do not count; ``trained`` where the policy loss leaves some actions out,
    and the ``entropy`` that they were chosen by; ``labels`` in [0, 1] for a ``StepLabelObjective``; and
    ``prepared/NAME`` for each column that the policy loss's ``prepare`` returned."""
    teacher_top: TopTokens | None = None
    """The teacher's most probable tokens at each action."""
    supervised: TrajectoryColumns | None = None
    """Sequences for the terms whose rows are ``supervised``; their action mask marks the tokens to imitate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopTokens:
    """The k most probable tokens at each action, most probable first."""

    token_ids: NDArray[np.int32]
    """(sum of A, k)"""
    logprobs: NDArray[np.float32]
    """(sum of A, k) natural log-probability of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalizers:
    """Totals over the whole optimizer step, on all ranks, by which losses are divided. Because of them the gradient
    does not depend on how the step is split into micro-batches."""

    num_actions: int
    """Action tokens of the whole update, over all ranks."""
    num_sequences: int
    """Episodes of the step, each counted once even if it has several rows; rows, if rows are not episodes."""
    max_actions: int
    """The constant length of ``seq-mean-token-sum-norm``: the longest response that the run allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Settings of one optimizer step, in addition to its data."""

    normalizers: Normalizers
    """Totals over the rows of the whole update whose rewards count (``JUDGED``), by which losses are divided; 0 if
    there are no such rows."""
    sampled_normalizers: Normalizers | None = None
    """Totals of all rows of the update, for the terms that need no advantages; None: the same."""
    supervised_normalizers: Normalizers | None = None
    """The totals of the supervised rows."""
    kl_coef: float = 0.0
    """Factor of the KL term in the loss; 0: the loss does not compute the KL."""
    entropy_coef: float = 0.0
    """Factor of the entropy bonus; 0: none."""
    on_policy: bool = False
    """True before the first update on a batch, when the policy is still the old policy: the loss then takes the
    policy's own (detached) log-probs as the old ones, and no extra pass is needed."""
    mismatched_kl: float | None = None
    """``PreferenceInputs.mismatched_kl`` of the whole step, for a preference loss that needs it."""
    return_logprobs: bool = False
    """Return the policy's log-probs of this step's forward pass as ``StepOutcome.logprobs``."""
    return_entropies: bool = False
    """Return the entropies of this step's forward pass as ``StepOutcome.entropies``; a backend that does not compute
    entropies returns None."""
    return_losses: bool = False
    """Return the policy loss of each action, and where its bounds stopped the gradient, as ``StepOutcome.losses`` and
    ``StepOutcome.clipped``; None from a backend that does not compute them and for every other objective."""
    return_values: bool = False
    """Return the outputs of the role's head in this step's forward pass as ``StepOutcome.values``; None from a backend
    that does not compute them and for a role without a head."""
    lr_factor: float = 1.0
    """Multiplies the learning rate of every parameter group in this step, after the schedule; 0 leaves the weights
    unchanged."""
    syncs_reference: bool = False
    """After the update, a skipped one included, move the role's own reference to the weights: reference = a * weights +
    (1 - a) * reference, with a = ``RoleSpec.reference_sync``. Without such a reference it does nothing."""
    undo_bytes: int = 0
    """Size limit in bytes of the copy that a backend with ``Undoes`` makes of everything that updates change, before
    the role's first update of a step; it makes no larger copy. 0: it copies nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The result of one optimizer step."""

    metrics: Metrics
    """Metrics of the whole update, over all ranks."""
    logprobs: NDArray[np.float32] | None = None
    """(sum of A,) log-probs of the batch's actions before the update, if the plan asks for them."""
    entropies: NDArray[np.float32] | None = None
    """(sum of A,) entropies (nats, after the temperature) of the distributions that the actions were drawn from, before
    the update, if the plan asks for them."""
    losses: NDArray[np.float32] | None = None
    """(sum of A,) policy loss of each action as the update computed it, weighted by the correction and before the
    aggregation divides, if the plan asks for it; NaN where rewards do not count."""
    clipped: NDArray[np.float32] | None = None
    """(sum of A,) beside ``losses``: 1 where the policy loss gives an action with an advantage above 0 no gradient, -1
    with one below 0, else 0; NaN where that is not known."""
    values: NDArray[np.float32] | None = None
    """(sum of A,) numbers of the head that the loss was computed with, in the places of ``TrainBackend.values``, if the
    plan asks for them."""


Statistic = Literal["logprobs", "entropy", "sum_pi_squared", "is_top1"]
"""Name of a quantity at each action: its log-probability, or the entropy (nats) or the sum over the vocabulary of the
squared probabilities of the distribution that it was drawn from, all after the temperature; or 1 where no token is more
probable, else 0."""


class TrainBackend(Protocol):
    """One rank of one role. A factory is called as ``factory(config)``, then ``setup`` once."""

    def setup(self, spec: RoleSpec, plugins: Plugins) -> None:
        """Load the model and create the optimizer."""

    def logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return the log-probability (sum of A,) of each action. No gradient."""

    def base_logprobs(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return the log-probability (sum of A,) of each action under the role's own reference
        (``RoleSpec.reference_sync``), else under the model before training: under the base, or with the adapter from
        which the run continues. No gradient.

        Raises:
            PluginError: the role has neither such a reference nor an adapter.
        """

    def statistics(
        self, batch: TrajectoryColumns, names: Sequence[Statistic]
    ) -> dict[Statistic, NDArray[np.float32]]:
        """Return the named statistics, (sum of A,) each, from one forward pass. No gradient."""

    def top_tokens(self, batch: TrajectoryColumns, k: int) -> TopTokens:
        """Return the k most probable tokens at each action; equal ones in the order of their ids. No gradient."""

    def values(self, batch: TrajectoryColumns) -> NDArray[np.float32]:
        """Return the value (sum of A,) of the state before each action; of a role with the head ``score`` the score of
        the sequence that ends with each action. No gradient."""

    def train_step(self, batch: TrainBatch, plan: StepPlan) -> StepOutcome:
        """Do one optimizer step over the batch, in micro-batches of bounded size.

        A gradient that is not finite is not applied: weights and optimizer state stay untouched and the
        metric ``train/skipped_updates`` is 1.
        """

    def module(self) -> torch.nn.Module | None:
        """Return the live module, adapter included, if this process has all of it, else None."""

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the weights that engines get, a few hundred MiB at a time: all of them by Hugging Face names, merged
        under an adapter; or its ``factors`` alone where the adapter has a ``served_rank``."""

    def checksum(self) -> str:
        """Return the digest of the weights as ``buckets`` yields them (``rlhf_weights.weights_digest``); beside
        factors also of what a base in 4 bits is unpacked to (``ModelAdapter.unpacked_weights``)."""

    def save(self, folder: Path) -> None:
        """Write everything that resuming exactly needs, as safetensors and JSON."""

    def load(self, folder: Path) -> None:
        """Restore the state that ``save`` wrote, to the bit."""

    def export(self, folder: Path, *, ema: bool = False) -> None:
        """Write a plain Transformers folder with the tokenizer; under an adapter a PEFT folder with the tokenizer."""

    def offload(self, *, weights: bool = True, state: bool = True) -> None:
        """Move what can be moved out of the accelerator's memory: the state of training, and the weights of the model;
        and give back what an allocator keeps of freed memory. Until ``reload`` nothing else is called, but for
        ``offload`` with more and ``close``, and for ``buckets`` and ``checksum`` while the weights are in their place.

        Args:
            weights: False: the model stays in its place, as for an engine that computes with it.
            state: False, without ``weights``: everything stays in its place.
        """

    def reload(self, *, state: bool = True) -> None:
        """Move back what ``offload`` moved; every value is what it was, to the bit. State may still be on its way when
        the call returns, as long as whatever needs it waits for it.

        Args:
            state: False: the weights alone, after which ``buckets`` and ``checksum`` may be called.
        """

    def close(self) -> None:
        """Free the device; nothing is called afterwards."""


@runtime_checkable
class SharesBase(Protocol):
    """A training backend that keeps one copy of frozen weights, such as the base of two adapters, for several roles of
    a process. Runtimes that build roles in one process call ``setup_beside`` in place of ``setup``."""

    def setup_beside(
        self, spec: RoleSpec, plugins: Plugins, others: Sequence[TrainBackend]
    ) -> None:
        """As ``TrainBackend.setup``, with weights that one of ``others`` holds where that changes no result.

        Args:
            others: backends of this process whose roles are set up already.
        """


@runtime_checkable
class Undoes(Protocol):
    """Training backend that can go back to the state before the first update of a step (``StepPlan.undo_bytes``)."""

    updates_begun: int
    """Number of updates so far, each counted before it may change anything."""

    def undo(self, updates_begun: int) -> bool:
        """Bring back weights and state of training, to the bit, as they were when so many updates had begun.

        Returns False, and changes nothing, if these were not kept.
        """
