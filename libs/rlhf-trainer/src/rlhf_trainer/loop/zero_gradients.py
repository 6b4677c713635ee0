"""Causes of a gradient of exactly 0 in ``rlhf train``, by role."""

from __future__ import annotations

from ..learning.bad_updates.zero_gradients import ZeroGradientCauses
from ..learning.roles import CRITIC, POLICY

CAUSES = {
    POLICY: ZeroGradientCauses(
        error="advantage/abs_mean",
        right="Every advantage of these steps was 0, which is then the cause: no prompt had samples of different "
        "rewards. The reward is constant, or the prompts are too easy or too hard; look at reward/std and "
        "group/no_signal",
        wrong="Its advantages were not 0, so the gradient is lost on its way: the policy loss masks or clips every "
        "token (look at loss/policy and clip/...), an adapter trains what the loss does not depend on, or the backend "
        "drops it",
    ),
    CRITIC: ZeroGradientCauses(
        error="critic/abs_error",
        right="Its values were equal to the returns, which is then the cause; look at reward/std and "
        "critic/return_mean",
        wrong="Its values were not equal to the returns (critic/abs_error), so the gradient is lost on its way: "
        "critic.value_clip leaves no value free to move, or the backend drops it",
    ),
}
