"""Migration of verl's ``main_ppo``: the table's plain entries, then the rules by which keys act together."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.adapter import set_adapter
from ..common.optimizer import set_optimizer, set_schedule
from ..common.trainer import set_duration, set_evaluation, set_files, set_logs
from . import algorithm, correction, machine, prompts, rewards, sizes

_MODEL, _ACTOR_OPTIM = "actor_rollout_ref.model", "actor_rollout_ref.actor.optim"
_CRITIC_OPTIM = "critic.optim"
_WARMUP = "trainer.critic_warmup"


def migrate(source: SourceOptions, adapter: str) -> Outcome:
    """Return the configuration that the keys of ``main_ppo`` mean.

    Args:
        adapter: path of the file that calls the user's reward function, if it is needed.
    """
    out = Outcome(source)
    out.apply_plain_entries()
    if not source.given(f"{_MODEL}.path"):
        out.warnings.append(
            "actor_rollout_ref.model.path is missing, and verl's default names a folder of its authors"
        )
    teacher = "distillation.enabled"
    if teacher in source.entries and source.value(teacher):
        out.warnings.append(
            "verl learns from a teacher here, and this configuration from rewards alone: algo.teacher"
        )
    for rule in (
        prompts.set_data,
        prompts.set_tools,
        prompts.set_evaluation_of_answers,
        machine.set_backend,
        machine.set_gpus,
        machine.set_engine,
        machine.set_sleep,
        sizes.set_batches,
        sizes.set_lengths,
        sizes.set_micro_batches,
        algorithm.set_advantage,
        algorithm.set_loss,
        algorithm.set_kl,
        correction.set_correction,
        correction.set_filter,
        set_duration,
        sizes.set_async,
        set_evaluation,
        set_files,
        set_logs,
        _set_policy,
        _set_critic,
    ):
        rule(source, out)
    rewards.set_reward(source, out, adapter)
    out.without_shapers()
    return out


def _steps(source: SourceOptions) -> int | None:
    steps = source.value("trainer.total_training_steps")
    return steps if isinstance(steps, int) else None


def _set_policy(source: SourceOptions, out: Outcome) -> None:
    set_optimizer(source, out, _ACTOR_OPTIM, "actor")
    set_schedule(source, out, _ACTOR_OPTIM, "actor", _steps(source))
    set_adapter(source, out, _MODEL, "actor")


def _set_critic(source: SourceOptions, out: Outcome) -> None:
    """Set the critic's model, optimizer and the steps in which it is trained alone."""
    if not algorithm.has_critic(source):
        for key in source.entries:
            if key.startswith("critic.") or key == _WARMUP:
                out.nothing(
                    key, f"{source.text('algorithm.adv_estimator')} has no critic, in verl neither"
                )
        return
    path = "critic.model.path"
    out.set("critic.path", source.text(path), path)
    out.set("critic.value_clip", source.number("critic.cliprange_value"), "critic.cliprange_value")
    set_optimizer(source, out, _CRITIC_OPTIM, "critic")
    set_schedule(source, out, _CRITIC_OPTIM, "critic", _steps(source))
    set_adapter(source, out, "critic.model", "critic")
    # Its steps count from 1, and the policy is trained from step N on: N - 1 steps for the critic alone.
    out.set("critic.warmup_steps", max(source.whole(_WARMUP) - 1, 0), _WARMUP)
