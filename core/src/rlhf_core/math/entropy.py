"""Coefficient of an entropy bonus that follows the policy's entropy."""

from __future__ import annotations


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
