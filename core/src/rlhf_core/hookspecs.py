"""The hooks, in two families: component hooks return components, observer hooks hear the events of every run.

Nothing on the hot path goes through pluggy: a run looks its components up once and calls them directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pluggy

from .component import Component
from .observer import RolloutSample, RunInfo, RunResult

hookspec = pluggy.HookspecMarker("rlhf")
hookimpl = pluggy.HookimplMarker("rlhf")

Components = Sequence[Component[Any]]

COMPONENT_HOOKS: Mapping[str, str] = {
    "rlhf_data_sources": "data source",
    "rlhf_prompt_samplers": "prompt sampler",
    "rlhf_rollout_executors": "rollout executor",
    "rlhf_rewards": "reward",
    "rlhf_reward_shapers": "reward shaper",
    "rlhf_environments": "environment",
    "rlhf_advantage_estimators": "advantage estimator",
    "rlhf_policy_losses": "policy loss",
    "rlhf_preference_losses": "preference loss",
    "rlhf_is_corrections": "IS correction",
    "rlhf_kl_estimators": "KL estimator",
    "rlhf_sample_filters": "sample filter",
    "rlhf_optimizers": "optimizer",
    "rlhf_lr_schedules": "learning-rate schedule",
    "rlhf_eval_metrics": "evaluation metric",
    "rlhf_model_adapters": "model adapter",
    "rlhf_vision_models": "vision model",
    "rlhf_engines": "engine",
    "rlhf_train_backends": "training backend",
    "rlhf_runtimes": "runtime",
    "rlhf_observers": "observer",
    "rlhf_loggers": "logger",
    "rlhf_presets": "preset",
    "rlhf_commands": "command",
}
"""Component hook -> name of its kind in messages."""

OBSERVER_HOOKS = (
    "rlhf_run_start",
    "rlhf_rollout_end",
    "rlhf_step_end",
    "rlhf_eval_end",
    "rlhf_checkpoint_saved",
    "rlhf_run_end",
)


@hookspec
def rlhf_data_sources() -> Components:
    """Return data sources (``contracts.DataSource``), chosen with ``--data.source``."""


@hookspec
def rlhf_prompt_samplers() -> Components:
    """Return prompt samplers (``contracts.PromptSampler``), chosen with ``--data.sampler``."""


@hookspec
def rlhf_rollout_executors() -> Components:
    """Return rollout executors (``contracts.RolloutExecutor``), chosen with ``--rollout.executor``."""


@hookspec
def rlhf_rewards() -> Components:
    """Return rewards (``contracts.Reward``), chosen with ``--reward``, several at once with weights."""


@hookspec
def rlhf_reward_shapers() -> Components:
    """Return reward shapers (``contracts.RewardShaper``), applied in the order of ``--reward.shapers``."""


@hookspec
def rlhf_environments() -> Components:
    """Return environments (``contracts.Environment``), chosen with ``--env``. The factory is called per episode."""


@hookspec
def rlhf_advantage_estimators() -> Components:
    """Return advantage estimators (``contracts.AdvantageEstimator``), chosen with ``--estimator``."""


@hookspec
def rlhf_policy_losses() -> Components:
    """Return policy losses (``contracts.PolicyLoss``), chosen with ``--loss``."""


@hookspec
def rlhf_preference_losses() -> Components:
    """Return preference losses (``contracts.PreferenceLoss``), chosen with ``--preference.loss``."""


@hookspec
def rlhf_is_corrections() -> Components:
    """Return IS corrections (``contracts.IsCorrection``), chosen with ``--algo.correction.kind``."""


@hookspec
def rlhf_kl_estimators() -> Components:
    """Return KL estimators (``contracts.KlEstimator``), chosen with ``--algo.kl.estimator``."""


@hookspec
def rlhf_sample_filters() -> Components:
    """Return sample filters (``contracts.SampleFilter``), applied in the order of ``--rollout.filters``."""


@hookspec
def rlhf_optimizers() -> Components:
    """Return optimizers (``contracts.Optimizer``), chosen per role with ``--actor.optim``, ``--critic.optim``."""


@hookspec
def rlhf_lr_schedules() -> Components:
    """Return learning-rate schedules (``contracts.LrSchedule``), chosen per role with ``--actor.lr_schedule``."""


@hookspec
def rlhf_eval_metrics() -> Components:
    """Return evaluation metrics (``contracts.EvalMetric``), chosen with ``--eval.metrics``, several at once."""


@hookspec
def rlhf_model_adapters() -> Components:
    """Return model adapters (``contracts.ModelAdapter``), chosen with ``--actor.adapter``."""


@hookspec
def rlhf_vision_models() -> Components:
    """Return vision models (``contracts.VisionModel``), chosen with ``--model.vision``."""


@hookspec
def rlhf_engines() -> Components:
    """Return engines (``contracts.Engine``), chosen with ``--engine``."""


@hookspec
def rlhf_train_backends() -> Components:
    """Return training backends (``contracts.TrainBackend``), chosen with ``--backend``."""


@hookspec
def rlhf_runtimes() -> Components:
    """Return runtimes (``contracts.Runtime``), chosen with ``--runtime``."""


@hookspec
def rlhf_observers() -> Components:
    """Return observers (``contracts.Observer``), chosen with ``--observers.use``, several at once."""


@hookspec
def rlhf_loggers() -> Components:
    """Return loggers (``contracts.Logger``), chosen with ``--log.to``, several at once."""


@hookspec
def rlhf_presets() -> Components:
    """Return presets (``contracts.Preset``), chosen with ``--preset``: a published method's options as a TOML file."""


@hookspec
def rlhf_commands() -> Components:
    """Return commands, run as ``rlhf NAME ARGS...``. The factory is called with the list of arguments, not with a
    config, and returns the exit code."""


@hookspec
def rlhf_run_start(run: RunInfo) -> None:
    """Called once on the driver, after everything was built and before the first step."""


@hookspec
def rlhf_rollout_end(
    step: int, samples: Sequence[RolloutSample], metrics: Mapping[str, float]
) -> None:
    """Called on the driver after each step's updates, before ``rlhf_step_end``: a few of its samples as text."""


@hookspec
def rlhf_step_end(step: int, metrics: Mapping[str, float]) -> None:
    """Called on the driver at the end of each step with everything that ``metrics.jsonl`` records of it."""


@hookspec
def rlhf_eval_end(step: int, metrics: Mapping[str, float]) -> None:
    """Called on the driver after each evaluation."""


@hookspec
def rlhf_checkpoint_saved(step: int, path: Path) -> None:
    """Called on the driver once a checkpoint is complete and durable."""


@hookspec
def rlhf_run_end(result: RunResult) -> None:
    """Called once on the driver, also when the run failed."""
