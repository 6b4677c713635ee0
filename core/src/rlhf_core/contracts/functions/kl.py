"""KL estimators: from the log-ratio at a sampled token to an estimate of the divergence from the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class KlEstimator(Protocol):
    """A per-token estimate of KL(policy || reference). The core scales it, masks it, and puts it into rewards or into
    the loss (``algo.kl.mode``)."""

    def __call__(self, log_ratio: Tensor) -> Tensor:
        """Return one estimate in nats for each token, of the same shape.

        0 where the log-ratio is 0, a function of each token alone, and finite with a finite slope for every finite
        log-ratio: ``exp`` of one is not.

        Args:
            log_ratio: ``policy - reference``, log-probs in nats of tokens that the policy sampled; at least float32. It
                may need a gradient. 0 at padding.
        """
