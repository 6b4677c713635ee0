"""Rules of the optimizers: Adam or Muon and the schedule, for policy and critic; the critic; the averaged policy."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .algorithm import has_critic

_SCHEDULES = {
    "cosine_with_min_lr": ("cosine", None),
    "cosine_warmup_with_min_lr": ("cosine", None),
    "cosine": ("cosine", 0.0),
    "linear": ("linear", 0.0),
    "constant": ("constant", None),
    "constant_with_warmup": ("constant", None),
}
"""Name of a schedule in Transformers -> ours, and its floor where it is not an option."""


def set_optimizers(source: SourceOptions, out: Outcome) -> None:
    """Set optimizer and schedule of the policy, and of the critic if there is one."""
    for role in ("actor", "critic") if has_critic(source) else ("actor",):
        _set_optimizer(source, out, role)
        _set_schedule(source, out, role)
    if not has_critic(source):
        for name in source.entries:
            if name.startswith("critic."):
                estimator = source.text("algo.advantage.estimator")
                out.nothing(name, f"{estimator} has no critic, in OpenRLHF neither")


def _set_optimizer(source: SourceOptions, out: Outcome, role: str) -> None:
    name = source.text(f"{role}.optim")
    out.set(f"{role}.optim", name, f"{role}.optim")
    if name == "adam":
        for option in ("lr", "betas", "eps", "weight_decay"):
            flag = f"{role}.adam.{option}"
            out.set(flag, source.value(flag), flag)
        for option in ("lr", "momentum"):
            out.nothing(f"{role}.muon.{option}", "the optimizer is adam")
    else:
        for option in ("lr", "momentum"):
            flag = f"{role}.muon.{option}"
            out.set(flag, source.value(flag), flag)
        comment = "DeepSpeed's scaling of a matrix's learning rate"
        out.set(f"{role}.muon.adjust_lr", "original", f"{role}.muon.lr", comment=comment)
        for option, ours in (("lr", "adam_lr"), ("betas", "adam_betas"), ("eps", "adam_eps")):
            flag = f"{role}.adam.{option}"
            out.set(f"{role}.muon.{ours}", source.value(flag), flag)
        flag = f"{role}.adam.weight_decay"
        out.set(f"{role}.muon.weight_decay", source.value(flag), flag)
        if source.number(flag):
            out.differs(flag, "only matrices are decayed; DeepSpeed's Muon decays norms too")
    norm = source.number(f"{role}.max_norm")
    out.set(f"{role}.max_norm", norm if norm else "none", f"{role}.max_norm")


def _set_schedule(source: SourceOptions, out: Outcome, role: str) -> None:
    flag, floor_flag = f"{role}.lr_scheduler", f"{role}.min_lr_ratio"
    name = source.text(flag)
    if name not in _SCHEDULES:
        out.missing(
            flag, f"there is no schedule {name}; actor.lr_schedule is constant, linear or cosine"
        )
    schedule, floor = _SCHEDULES.get(name, ("constant", None))
    out.set(f"{role}.lr_schedule", schedule, flag)
    if name == "constant":
        out.set(
            f"{role}.warmup_ratio", 0.0, flag, comment="constant has no warm-up in Transformers"
        )
        out.nothing(
            f"{role}.lr_warmup_ratio", "the schedule constant of Transformers has no warm-up"
        )
    else:
        warmup = source.number(f"{role}.lr_warmup_ratio")
        out.set(f"{role}.warmup_ratio", warmup, f"{role}.lr_warmup_ratio")
    if schedule == "constant":
        out.nothing(floor_flag, "the learning rate is constant")
    elif floor is None:
        out.set(f"{role}.min_lr_ratio", source.number(floor_flag), floor_flag)
    else:
        out.set(f"{role}.min_lr_ratio", floor, flag, comment=f"{name} of Transformers ends at 0")
        out.nothing(floor_flag, f"OpenRLHF reads it only with cosine_with_min_lr, not with {name}")


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
    out.set("critic.value_clip", source.number("critic.value_clip"), "critic.value_clip")
    # Its steps count from 0 and train the policy above N: N + 1 steps for the critic alone.
    steps = source.whole("critic.freezing_steps") + 1
    out.set("critic.warmup_steps", max(steps, 0), "critic.freezing_steps")
    if source.flag("critic.save_value_network"):
        out.missing(
            "critic.save_value_network",
            "the critic is in the checkpoints; only the policy is exported",
        )


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
