"""The components and data that turn a scored batch into updates, built from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_config.resolved import Resolved
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.called import Checked
from rlhf_core.contracts.advantage import AdvantageEstimator, Advantages
from rlhf_core.contracts.functions.kl import KlEstimator
from rlhf_core.contracts.loss import PreparingLoss
from rlhf_core.media.reader import writing_of
from rlhf_core.rng import generator_of
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.responses import load_responses
from rlhf_data.tokenizer import eos_token_ids

from ..rollouts.images import image_reader
from .advantages import PenaltyChecked
from .demands import Demands


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningParts:
    """Components and data that a learner needs beside the roles."""

    estimator: AdvantageEstimator
    kl_estimator: KlEstimator | None = None
    """The estimate of the KL penalty in the reward, if the run has one."""
    preparing_loss: PreparingLoss | None = None
    """The policy loss, if it looks at the whole optimizer step first."""
    supervised: SupervisedRows | None = None
    """Responses to imitate, if a further loss does."""


def learning_parts(
    resolved: Resolved, demands: Demands, tokenizer: PreTrainedTokenizerBase
) -> LearningParts:
    """Build the components, and load the supervised data.

    Raises:
        RLHFError: a component cannot be built, or a row of the supervised data is bad.
    """
    loss = resolved.one("algo.loss.policy")
    return LearningParts(
        estimator=_estimator(resolved),
        kl_estimator=_kl_estimator(resolved),
        preparing_loss=loss.build() if demands.prepares_step else None,
        supervised=_supervised_rows(resolved, tokenizer) if demands.supervised else None,
    )


def _estimator(resolved: Resolved) -> AdvantageEstimator:
    chosen, kl = resolved.one("algo.advantage.estimator"), resolved.run.algo.kl

    def make() -> Any:
        return Checked(chosen.build(), Advantages, chosen.label)

    if kl.mode == "loss" or kl.coef == 0:
        estimator: AdvantageEstimator = make()
        return estimator
    return PenaltyChecked(make, f"--estimator {chosen.registered.name}")


def _kl_estimator(resolved: Resolved) -> KlEstimator | None:
    chosen, kl = resolved.one("algo.kl.estimator"), resolved.run.algo.kl
    if kl.mode != "reward" or kl.coef == 0:
        return None
    # Any: a component is called by position, and its protocol names the argument.
    checked: Any = Checked(chosen.build(), Tensor, chosen.label)
    estimator: KlEstimator = checked
    return estimator


def _supervised_rows(resolved: Resolved, tokenizer: PreTrainedTokenizerBase) -> SupervisedRows:
    run = resolved.run
    # A model may have several end-of-sequence tokens; a response to imitate ends with the tokenizer's own.
    own: int | None = tokenizer.eos_token_id
    if own is None:
        trusted = run.model.trust_remote_code
        own = eos_token_ids(tokenizer, run.model.path, trust_remote_code=trusted)[0]
    images = image_reader(resolved)
    renderer = TokenizerRenderer.by(run.data, tokenizer, writing_of(images))
    responses = load_responses(run, renderer, own, images)
    return SupervisedRows(responses, run.supervised.batch_size, run.seed)


class SupervisedRows:
    """Rows of good responses in an endless sequence of epochs, each in an order of its own.

    Args:
        rows: all supervised rows.
        batch_size: rows per optimizer update; more than there are counts as all.
    """

    def __init__(self, rows: TrajectoryColumns, batch_size: int, seed: int) -> None:
        self._rows = rows
        self.batch_size = min(batch_size, len(rows))
        """Rows that one call to ``take`` moves on by."""
        self._seed = seed

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, taken: int) -> TrajectoryColumns:
        """Return the next rows after the first ``taken``. A row at the end of an epoch that comes again at the start of
        the next is returned once."""
        positions = np.arange(taken, taken + self.batch_size)
        epochs, places = np.divmod(positions, len(self._rows))
        chosen = np.concatenate(
            [self._order(epoch)[places[epochs == epoch]] for epoch in np.unique(epochs).tolist()]
        )
        return self._rows.select(np.unique(chosen))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        order: NDArray[np.int64] = generator_of(self._seed, "supervised", epoch).permutation(
            len(self._rows)
        )
        return order
