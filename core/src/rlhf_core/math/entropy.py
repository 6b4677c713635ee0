"""Coefficient of an entropy bonus that follows the policy's entropy, and the tokens of the highest entropy."""

from __future__ import annotations

from ..lazy import NDArray, np


def adapted_entropy_coef(coef: float, entropy: float, *, target: float, step: float) -> float:
    """Return the next coefficient: ``coef + step`` if the entropy is below its target, else ``max(0, coef - step)``.

    In the source the bonus counts only while the entropy is at or below the target; the caller has to see to that.

    Args:
        entropy: mean entropy of the policy at this step, nats per token.
        target: entropy to keep, in the same unit.
        step: change of the coefficient per step of the run, positive.

    Source: He et al. 2025 (Skywork-OR1), arXiv:2505.22312, section on adaptive entropy control.
    """
    return coef + step if entropy < target else max(0.0, coef - step)


def highest_entropy(
    entropies: NDArray[np.float32],
    share: float,
    counted: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return 1 at the share of the counted tokens whose entropy is highest, and 0 at all others.

    ``1[H_t >= tau]``, where ``tau`` is the quantile of the counted tokens' entropies at ``1 - share``, between two of
    them on the straight line. Tokens whose entropy is ``tau`` are among the highest, so of equal ones all are. Share 1
    gives all counted tokens, share 0 those of the largest entropy alone. The order of the tokens has no effect.

    Args:
        entropies: (M,) nats.
        share: ``rho`` of the paper, from 0 to 1.
        counted: (M,) above 0 at the tokens that count; None: all do.

    Source: Wang et al. 2025, arXiv:2506.01939, with ``rho`` 0.2. TRL's ``top_entropy_quantile`` has the same quantile.
    """
    within = np.ones(len(entropies), dtype=bool) if counted is None else counted > 0
    if not within.any():
        return np.zeros_like(entropies)
    # In the precision of the entropies again: rounding of 1 - share must not lift tau above the token that it is.
    tau = np.float32(np.quantile(entropies[within].astype(np.float64), 1.0 - share))
    return (within & (entropies >= tau)).astype(np.float32)
