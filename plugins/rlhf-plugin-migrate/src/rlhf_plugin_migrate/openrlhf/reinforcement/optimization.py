"""Rules of what is trained: optimizers and adapters of policy and critic, the critic itself, the averaged policy."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.model_adapter import set_adapter
from ..common.optimizer import set_optimizer, set_schedule
from .algorithm import has_critic


def set_optimizers(source: SourceOptions, out: Outcome) -> None:
    """Set optimizer and schedule of the policy, and of the critic if there is one."""
    for role in ("actor", "critic") if has_critic(source) else ("actor",):
        set_optimizer(source, out, role, f"{role}.")
        set_schedule(source, out, role, f"{role}.")
    if not has_critic(source):
        for name in source.entries:
            if name.startswith("critic."):
                estimator = source.text("algo.advantage.estimator")
                out.nothing(name, f"{estimator} has no critic, in OpenRLHF neither")


def set_critic(source: SourceOptions, out: Outcome) -> None:
    """Set the critic's model, its clip range and the steps in which it is trained alone."""
    if not has_critic(source):
        return
    flag = "critic.model_name_or_path"
    path = source.text(flag)
    if path:
        out.set("critic.path", path, flag)
        out.differs(
            flag,
            "it has to be a whole language model; a reward model, which has no output head, is refused",
        )
    elif source.text("reward.model_name_or_path") and not source.given(
        "reward.remote_url", "train.agent_func_path"
    ):
        out.differs(
            flag, "OpenRLHF starts the critic from the reward model; it starts from the policy here"
        )
    out.copy("critic.value_clip", "critic.value_clip")
    # Its steps count from 0 and train the policy above N: N + 1 steps for the critic alone.
    steps = source.whole("critic.freezing_steps") + 1
    out.set("critic.warmup_steps", max(steps, 0), "critic.freezing_steps")
    if source.flag("critic.save_value_network"):
        out.missing(
            "critic.save_value_network",
            "the critic is in the checkpoints; only the policy is exported",
        )


def set_adapters(source: SourceOptions, out: Outcome) -> None:
    """Set the adapters of the policy and, if there is one, of the critic, to which OpenRLHF gives the same."""
    roles = ("actor", "critic") if has_critic(source) else ("actor",)
    set_adapter(source, out, roles)


def set_average(source: SourceOptions, out: Outcome) -> None:
    """Set the averaged policy."""
    if source.flag("train.enable_ema"):
        out.set("actor.ema", source.number("train.ema_beta"), "train.enable_ema", "train.ema_beta")
        out.differs(
            "train.enable_ema",
            "it is exported to model_ema/ beside the policy; OpenRLHF saves it in place of the policy",
        )
    else:
        out.nothing("train.ema_beta", "OpenRLHF reads it only with --train.enable_ema")
