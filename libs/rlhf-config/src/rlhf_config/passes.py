"""Size of micro-batches that nobody has set: a pass holds the longest sequence of the run."""

from __future__ import annotations

from typing import TypeVar

from rlhf_core.component import Config

MICRO_BATCH = (
    "largest number of packed tokens in one forward and backward pass, shared ones counted once; "
    "unset: the default, or the longest sequence of the run if that is more"
)
"""Description of the option ``train.max_tokens_per_micro_batch``."""
_SIZE = "max_tokens_per_micro_batch"
TrainT = TypeVar("TrainT", bound=Config)


def with_room(train: TrainT, longest: int) -> TrainT:
    """Return the options of training in which a micro-batch holds ``longest`` tokens, unless its size was set.

    Args:
        train: has the option ``max_tokens_per_micro_batch``.
    """
    if _SIZE in train.model_fields_set or getattr(train, _SIZE) >= longest:
        return train
    return train.model_copy(update={_SIZE: longest})
