"""An entropy bonus that follows the policy's entropy instead of being fixed."""

from __future__ import annotations


def adapted_entropy_coef(coef: float, entropy: float, *, target: float, step: float) -> float:
    """Return the next coefficient: up by ``step`` while the entropy is below its target, else down, never below 0.

    The bonus is meant to be in force only while the entropy is at or below the target; that is the caller's to apply.

    Args:
        entropy: of the policy at this step, nats per token.

    Source: He et al. 2025 (Skywork-OR1), arXiv:2505.22312, section on adaptive entropy control.
    """
    return coef + step if entropy < target else max(0.0, coef - step)
