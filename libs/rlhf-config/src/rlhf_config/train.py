"""The option tree of ``rlhf train``: which selectors pick which components, and the checks that span several options.

This is the one place where a path of that command's configuration meets a hook. No component is named here.
"""

from __future__ import annotations

from rlhf_core.errors import ConfigError
from rlhf_core.plugins import Plugins

from .checks import cautions, effects, features, rules
from .checks.held_out import held_out_paths
from .option_tree import NamedPaths, OptionTree, Selector
from .problems import Labels
from .resolved import EnvironmentOptions, RewardOptions, Selections, TermOptions
from .run import RunConfig

SLOTS = (
    Selector("runtime.name", "rlhf_runtimes"),
    Selector("engine.name", "rlhf_engines"),
    Selector("backend.name", "rlhf_train_backends"),
    Selector("model.vision", "rlhf_vision_models"),
    Selector("data.source", "rlhf_data_sources"),
    Selector("data.sampler", "rlhf_prompt_samplers"),
    Selector("rollout.executor", "rlhf_rollout_executors"),
    Selector("env.use", "rlhf_environments", many=True, labeled=True),
    Selector("rollout.filters", "rlhf_sample_filters", many=True),
    Selector("reward.use", "rlhf_rewards", many=True),
    Selector("reward.shapers", "rlhf_reward_shapers", many=True),
    Selector("algo.advantage.estimator", "rlhf_advantage_estimators"),
    Selector("algo.loss.policy", "rlhf_policy_losses"),
    Selector("algo.terms.use", "rlhf_policy_losses", many=True),
    Selector("algo.correction.kind", "rlhf_is_corrections"),
    Selector("algo.kl.estimator", "rlhf_kl_estimators"),
    Selector("actor.optim", "rlhf_optimizers"),
    Selector("actor.lr_schedule", "rlhf_lr_schedules"),
    Selector("actor.adapter", "rlhf_model_adapters"),
    Selector("critic.optim", "rlhf_optimizers"),
    Selector("critic.lr_schedule", "rlhf_lr_schedules"),
    Selector("critic.adapter", "rlhf_model_adapters"),
    Selector("eval.metrics", "rlhf_eval_metrics", many=True),
    Selector("observers.use", "rlhf_observers", many=True),
    Selector("log.to", "rlhf_loggers", many=True),
)


def _check(run: RunConfig, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    effects.check(run, selections, labels)
    rules.check(run, selections, labels, plugins)
    _check_sleep(run, labels)
    features.check(run, selections, labels)


def _check_sleep(run: RunConfig, labels: Labels) -> None:
    """Refuse a ``runtime.sleep`` that has the engine sleep where generation runs beside training."""
    sleep = run.runtime.sleep
    if sleep not in ("auto", "never") and run.rollout.max_staleness:
        raise ConfigError(
            f"{labels('runtime.sleep')} {sleep} and {labels('rollout.max_staleness')} {run.rollout.max_staleness}: "
            "with rollouts of older weights the engine generates for the next steps while roles compute, so neither "
            "could give its memory to the other.\n"
            "  Set --rollout.max_staleness 0, or --runtime.sleep never and room for both.",
            code="config/sleep-beside-rollouts",
        )


def _models(run: RunConfig) -> NamedPaths:
    for option, name in (
        ("model.path", run.model.path),
        ("ref.path", run.ref.path),
        ("critic.path", run.critic.path),
        ("algo.teacher.path", run.algo.teacher.path),
    ):
        if name is not None:
            yield option, name


def _data(run: RunConfig) -> NamedPaths:
    for source in run.data.train:
        yield "data.train", source
    yield from held_out_paths(run.eval)
    for source in run.supervised.data:
        yield "supervised.data", source


TRAIN = OptionTree(
    command="train",
    purpose="Trains a model with reinforcement learning.\n"
    "A run needs --model, and tasks: --data with --reward, or --env.",
    example="--estimator NAME",
    model=RunConfig,
    selectors=SLOTS,
    shared={
        "env.use": EnvironmentOptions,
        "reward.use": RewardOptions,
        "algo.terms.use": TermOptions,
    },
    check=_check,
    cautions=cautions.cautions,
    models=_models,
    adapters=frozenset({"ref.path", "algo.teacher.path"}),
    data=_data,
)
