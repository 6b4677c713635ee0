"""Checks that the engine serves the trainer's weights, and that both compute the same log-probs with them."""

from __future__ import annotations

from rlhf_core.concurrency import all_at_once
from rlhf_core.contracts.engine import Engine
from rlhf_core.contracts.runtime import RoleHandle
from rlhf_core.errors import RolloutError


async def check_served_weights(engine: Engine, policy: RoleHandle, version: int) -> None:
    """Compare the weights' digests of engine and policy, unless they share tensors or one has no digest.

    Raises:
        RolloutError: the digests differ, so samples would not come from the policy that is trained.
    """
    if engine.shares_weights:
        return
    # The engine first: it computes in a process of its own, while the trainer may compute in this one.
    served, expected = await all_at_once([engine.checksum(), policy.checksum()])
    if served is not None and expected is not None and served != expected:
        raise RolloutError(
            f"after the update to version {version} the engine serves other weights (digest {served[:12]}) than the "
            f"trainer has ({expected[:12]}); its samples would be off-policy without a warning. Go on from the newest "
            "checkpoint with --resume auto. If it happens again, the engine loads this model's weights wrongly, and "
            "--rollout.check_weights false would only hide it."
        )


def require_agreement(logprob_diff_mean: float, limit: float) -> None:
    """Refuse to go on when sampler and trainer disagree about the same tokens under equal weights.

    Args:
        logprob_diff_mean: mean absolute difference of their log-probs, in nats per token.
        limit: ``rollout.max_mismatch``, in the same unit.

    Raises:
        RolloutError: the difference is above the limit.
    """
    if logprob_diff_mean <= limit:
        return
    raise RolloutError(
        f"sampler and trainer disagree about the tokens that were just sampled: their log-probs differ by "
        f"{logprob_diff_mean:.3g} nats a token on average, with equal weights; expected at most rollout.max_mismatch = "
        f"{limit:g}. One of them computes something else: another temperature, positions or tokens shifted by one, an "
        "architecture that the engine does not know, or a precision that is too low. Compare with --engine embedded "
        "and --model.dtype float32; if the difference is wanted, raise --rollout.max_mismatch or set it to none."
    )
