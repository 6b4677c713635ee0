"""Refusal of runs without the rewards that they learn from, and of what acts on rewards that nothing learns from."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rlhf_core.capabilities import JUDGES_REWARDS, NO_ADVANTAGES, REWARDS_EPISODES
from rlhf_core.errors import ConfigError

from ..problems import Labels, missing
from ..resolved import Selection, Selections
from ..run import RunConfig


def missing_reward(selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    """Yield the problem of a run whose loss is weighted with advantages and that nothing rewards."""
    (executor,) = selections["rollout.executor"]
    is_rewarded = REWARDS_EPISODES in executor.registered.component.provides
    if selections["reward.use"] or selections["env.use"] or is_rewarded:
        return
    if learns_from_rewards(selections):
        yield ConfigError(
            missing(
                "--reward",
                "expected a reward, or an environment that gives one",
                "Add --reward NAME, --reward FILE.py:FUNCTION or --env NAME.",
                emptied=labels("reward.use") if labels.is_set("reward.use") else None,
            ),
            code="config/no-reward",
        )


def unknown_rewards(selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    """Yield the problem of each component that asks for a reward which the run does not have."""
    names = reward_names(selections)
    if names is None:
        return
    for selection in (one for found in selections.values() for one in found):
        for name, option in sorted(selection.options.rewards_named().items()):
            if name in names:
                continue
            close = difflib.get_close_matches(name, names, n=1)
            near = f" Did you mean {close[0]!r}?" if close else ""
            yield ConfigError(
                f"{labels(f'{selection.section}.{option}')} {name}: {selection.name} reads the reward {name!r}, which "
                f"this run does not have.{near}\n  Rewards: {', '.join(names) or 'none'}. Name one of them, or add it: "
                f"--reward {' '.join([*names, name])}.",
                code="reward/unknown",
            )


def reward_names(selections: Selections) -> list[str] | None:
    """Return the names of a run's rewards; None: an environment, or an executor that rewards, gives rewards whose names
    are known once it has."""
    (executor,) = selections["rollout.executor"]
    if selections["env.use"] or REWARDS_EPISODES in executor.registered.component.provides:
        return None
    return [chosen.name for chosen in selections["reward.use"]]


def reward_rules(run: RunConfig, selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    """Yield the problems of rewards that teach nothing, and of a KL in rewards, or filters on them, that nothing learns
    from."""
    yield from unknown_rewards(selections, labels)
    rewards = selections["reward.use"]
    weights = [chosen.reward.weight for chosen in rewards if chosen.reward is not None]
    if weights and not any(weights) and not selections["env.use"]:
        section = rewards[0].section
        yield ConfigError(
            f"{labels(f'{section}.weight')} is 0, as is every reward's weight: nothing would be learned",
            code="config/weightless-rewards",
        )
    (loss,) = selections["algo.loss.policy"]
    if run.algo.kl.coef and run.algo.kl.mode == "reward" and not learns_from_rewards(selections):
        yield ConfigError(
            f"{labels('algo.kl.coef')} {run.algo.kl.coef:g}: the KL would be subtracted from rewards, and "
            f"{labels('algo.loss.policy')} {loss.registered.name} teaches the same whatever the rewards are. Set "
            "--algo.kl.mode loss, or leave the KL out: --algo.kl.coef 0.",
            code="config/kl-in-unused-rewards",
        )
    if _learns_from_rewards(loss):
        return
    for chosen in selections["rollout.filters"]:
        if JUDGES_REWARDS in chosen.registered.component.provides:
            yield ConfigError(
                f"{labels('rollout.filters')} {chosen.registered.name} drops prompts by their rewards, and "
                f"{labels('algo.loss.policy')} {loss.registered.name} teaches the same whatever the rewards are. Leave "
                "the filter out, or choose a --loss that is weighted with advantages.",
                code="config/filter-of-unused-rewards",
            )


def learns_from_rewards(selections: Selections) -> bool:
    """True when a loss of the run is weighted with advantages."""
    return any(
        map(_learns_from_rewards, (*selections["algo.loss.policy"], *selections["algo.terms.use"]))
    )


def _learns_from_rewards(loss: Selection) -> bool:
    return NO_ADVANTAGES not in loss.registered.component.provides
