"""Options of a run as capabilities (``rlhf_core.capabilities``), and quantities that several options give together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from rlhf_core import capabilities
from rlhf_core.capabilities import (
    BFLOAT16_WEIGHTS,
    ENDLESS_TASKS,
    EXPERT_ROUTES,
    FIX,
    IN_PROCESS,
    OFF_POLICY,
    REPLAYS_ROUTES,
    RETURNING_PROMPTS,
    SEEING,
    SERVES_ADAPTERS,
    SERVES_FOUR_BITS,
    SEVERAL_RANKS,
    SHARES_WEIGHTS,
    SLEEP,
    STALE_ROLLOUTS,
    Chosen,
)
from rlhf_core.contracts.backend import Aggregation
from rlhf_core.errors import CapabilityError, ConfigError

from ..common import ModelConfig
from ..problems import Labels
from ..resolved import EnvironmentOptions, Selection, Selections
from ..run import RolloutConfig, RunConfig

_CRITIC = "critic."
_VISION = "model.vision"
_KL = "algo.kl.estimator"
_OF_ENGINES = frozenset({SERVES_ADAPTERS, SERVES_FOUR_BITS, SHARES_WEIGHTS})
"""Needs of adapters that concern the engine, which never gets a critic's."""
_AGGREGATIONS: Mapping[str, Aggregation] = {
    f"aggregation:{mode}": mode for mode in get_args(Aggregation)
}
"""Capability of a component that was published with an aggregation of its own -> that aggregation."""


def features_of(run: RunConfig, selections: Selections) -> frozenset[str]:
    """Return the capabilities of ``capabilities.BROUGHT_BY_OPTIONS`` that the options bring to this run."""
    kl = run.algo.kl
    found = {
        "environment": bool(selections["env.use"]),
        "reward": bool(selections["reward.use"]),
        "data": bool(run.data.train) or run.data.source is not None,
        "is_correction": bool(selections["algo.correction.kind"]),
        "reward_shaper": bool(selections["reward.shapers"]),
        "model_adapter": bool(selections["actor.adapter"]),
        "kl_in_reward": kl.coef > 0 and kl.mode == "reward",
        "kl_in_loss": kl.coef > 0 and kl.mode == "loss",
        "adaptive_kl": kl.target is not None,
        "renormalized_sampling": renormalizes(run),
        "several_updates": updates_per_batch(run) > 1,
        "entropy_bonus": has_entropy_bonus(run),
        "rollout_as_old": old_logprobs_from(run, selections) == "rollout",
        STALE_ROLLOUTS: run.rollout.max_staleness > 0,
        RETURNING_PROMPTS: prompts_return(run, selections),
        "supervised_data": bool(run.supervised.data),
        "teacher": run.algo.teacher.path is not None,
        "images": bool(selections["model.vision"]),
        SLEEP: run.runtime.sleep != "never" and not run.rollout.max_staleness,
        BFLOAT16_WEIGHTS: run.model.dtype == "bfloat16",
    }
    return frozenset(name for name, present in found.items() if present)


def prompts_return(run: RunConfig, selections: Selections) -> bool:
    """Return whether prompts come again, as far as what was chosen says it: an environment's code may know better."""
    if run.data.train or run.data.source is not None:
        return bool(run.data.train)
    endless = (ENDLESS_TASKS in one.registered.component.provides for one in selections["env.use"])
    return run.data.max_samples is not None or not any(endless)


def old_logprobs_from(
    run: RunConfig, selections: Selections
) -> Literal["reuse", "recompute", "rollout"]:
    """Return where the ratio's denominator comes from: as written or, for ``auto``, the cheapest that is exact.

    Stale samples were drawn from an older policy than the one at the start of the update. Where no correction and no
    loss weighs them for that, only the sampler's log-probs make the ratio right.
    """
    mode = run.algo.loss.old_logprobs
    if mode != "auto":
        return mode
    if run.rollout.max_staleness and not weighs_samples(selections):
        return "rollout"
    return "recompute" if updates_per_batch(run) > 1 else "reuse"


def weighs_samples(selections: Selections) -> bool:
    """True when tokens are weighted for the difference between sampler and trainer: by a correction, or by a loss that
    reads the sampler's log-probs itself."""
    (loss,) = selections["algo.loss.policy"]
    return bool(selections["algo.correction.kind"]) or "rollout_logprobs" in loss.needs


def environment_shares(environments: Sequence[Selection]) -> dict[str, float]:
    """Return the share of the tasks that each environment plays, by name; they add up to 1.

    Those without a share get equal parts of what the others leave of 1. If all have one, they are proportions.
    """
    shares = {each.name: (each.environment or EnvironmentOptions()).share for each in environments}
    given = sum(share for share in shares.values() if share is not None)
    unset = sum(share is None for share in shares.values())
    if not unset:
        return {name: share / given for name, share in shares.items() if share is not None}
    rest = max(1.0 - given, 0.0) / unset
    return {name: rest if share is None else share for name, share in shares.items()}


def is_off_policy(loss: Selection) -> bool:
    """True when a loss allows for samples of an older policy, by what it provides or by reading the sampler's
    log-probs."""
    return OFF_POLICY in loss.registered.component.provides or "rollout_logprobs" in loss.needs


def spare_prompts(rollout: RolloutConfig) -> int:
    """Number of prompts that a step starts beyond its ``batch_size``, by ``oversampling``."""
    # Rounded, because 10 * (1.1 - 1) is a little more than 1.
    return math.ceil(round(rollout.batch_size * (rollout.oversampling - 1), 6))


def prompts_in_flight(rollout: RolloutConfig) -> int:
    """Maximum number of prompts that are played at the same time."""
    ahead = rollout.max_staleness * rollout.batch_size
    most = rollout.batch_size + max(ahead, spare_prompts(rollout))
    return min(most, rollout.concurrency or most)


def has_entropy_bonus(run: RunConfig) -> bool:
    """True when the loss has an entropy term, also while an adapted coefficient is 0."""
    return run.algo.loss.entropy_coef > 0 or run.algo.loss.entropy_target is not None


def aggregation_of(written: str, chosen: Sequence[Selection]) -> Aggregation:
    """Return the aggregation of a loss: as written, else what the first of ``chosen`` that provides one was published
    with, else ``token-mean``."""
    for mode in get_args(Aggregation):
        if written == mode:
            return _AGGREGATIONS[f"aggregation:{mode}"]
    for selection in chosen:
        for word in sorted(selection.registered.component.provides & _AGGREGATIONS.keys()):
            return _AGGREGATIONS[word]
    return "token-mean"


def renormalizes(run: RunConfig) -> bool:
    """True when the sampler's log-probs are not those of the trainer's distribution."""
    return run.rollout.params().renormalizes


def updates_per_batch(run: RunConfig) -> int:
    """Optimizer updates per rollout batch: minibatches times inner epochs."""
    sequences = run.rollout.batch_size * run.rollout.n_samples_per_prompt
    minibatches = -(-sequences // (run.train.batch_size or sequences))
    return minibatches * run.train.inner_epochs


def needs(selections: Selections, labels: Labels) -> frozenset[str]:
    """Return the capabilities that any chosen component needs."""
    return capabilities.needs_of(_chosen(selections, labels))


def without_idle_critic(selections: Selections, labels: Labels) -> Selections:
    """Return the selections that take part in the run: those of a critic if one is built, and all others."""
    if "values" in needs(selections, labels):
        return selections
    return {path: found for path, found in selections.items() if not path.startswith(_CRITIC)}


def check(run: RunConfig, selections: Selections, labels: Labels) -> None:
    """Refuse components that cannot work together or with the options.

    Raises:
        CapabilityError: see ``capabilities.check``.
        ConfigError: see ``check_ranks``.
    """
    if not run.algo.kl.coef:
        selections = {path: found for path, found in selections.items() if path != _KL}
    chosen = _chosen(without_idle_critic(selections, labels), labels)
    rollout, features = run.rollout, features_of(run, selections)
    check_ranks(selections, labels)
    capabilities.check(chosen, features, rollout.n_samples_per_prompt, rollout.max_staleness)
    check_shared(selections, labels)
    if run.algo.correction.replay_routes:
        check_routes(selections, labels)


def check_shared(selections: Selections, labels: Labels) -> None:
    """Refuse an adapter that an engine would serve within the trainer's own model, where the runtime has the engine in
    another process.

    Raises:
        CapabilityError: names adapter, engine and runtime, and what to change.
    """
    (engine,), (runtime,) = selections["engine.name"], selections["runtime.name"]
    able, places = engine.registered.component.provides, runtime.registered.component.provides
    if SHARES_WEIGHTS not in able or IN_PROCESS in places:
        return
    for adapter in selections["actor.adapter"]:
        if needed := sorted(adapter.needs & able & _OF_ENGINES):
            raise CapabilityError(
                f"{labels('actor.adapter')} {adapter.name} needs {needed[0]!r}: {labels('engine.name')} {engine.name} "
                f"has it within the trainer's model alone, which {labels('runtime.name')} {runtime.name} has in "
                "another process. Choose another --engine, or a --runtime that has both in one process, or have the "
                "adapter merged into the weights that the engine gets (its option serve, if it has one).",
                code="adapter/not-servable",
            )


def check_ranks(selections: Selections, labels: Labels) -> None:
    """Refuse a training backend that trains in one process, where the runtime is to give a role several.

    Raises:
        ConfigError: names both, and what to change.
    """
    (runtime,), (backend,) = selections["runtime.name"], selections["backend.name"]
    able = backend.registered.component.provides
    if SEVERAL_RANKS in runtime.options.needed_by_options() and SEVERAL_RANKS not in able:
        raise ConfigError(
            f"{labels('runtime.name')} {runtime.name} is to run several processes of a role, and "
            f"{labels('backend.name')} {backend.name} trains in one process only. Choose a backend that provides "
            f"{SEVERAL_RANKS!r}, such as fsdp or deepspeed, or leave each role at one process.",
            code="ranks/one-process",
        )


def check_routes(selections: Selections, labels: Labels) -> None:
    """Refuse an engine that does not tell its routes to experts, and a training backend that cannot follow them.

    Raises:
        CapabilityError: names the component, and what to change.
    """
    for path, word in (("engine.name", EXPERT_ROUTES), ("backend.name", REPLAYS_ROUTES)):
        (selection,) = selections[path]
        if word not in selection.registered.component.provides:
            raise CapabilityError(
                f"--algo.correction.replay_routes with {labels(path)} {selection.name}: {FIX[word]}.",
                code="config/no-routes",
            )


def check_dtypes(model: ModelConfig, selections: Selections, labels: Labels) -> None:
    """Refuse components that exclude each other, an adapter, or the parameters' dtype, and several ranks of a backend
    of one process, in a command without other capabilities.

    Raises:
        CapabilityError: names the component, and what to change.
        ConfigError: as ``check_ranks``.
    """
    check_ranks(selections, labels)
    found = {
        BFLOAT16_WEIGHTS: model.dtype == "bfloat16",
        "model_adapter": bool(selections["actor.adapter"]),
    }
    brought = frozenset(name for name, present in found.items() if present)
    chosen = _chosen(selections, labels)
    capabilities.check_excluded(chosen, brought.union(*(one.provides for one in chosen)))


def _chosen(selections: Selections, labels: Labels) -> list[Chosen]:
    return [
        Chosen(
            labels(path),
            selection.registered,
            selection.options,
            unasked=_OF_ENGINES if path == "critic.adapter" else frozenset(),
            added=SEEING if path == _VISION else frozenset(),
        )
        for path, found in selections.items()
        for selection in found
    ]
