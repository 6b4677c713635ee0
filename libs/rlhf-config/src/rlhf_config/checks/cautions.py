"""Warnings about options that are allowed and probably not meant.

They are logged once when a run starts, and shown by ``--check`` and ``--dry-run``.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_core.capabilities import READS_TEXT

from ..problems import Labels
from ..resolved import Selections
from ..run import RunConfig
from .features import is_off_policy, updates_per_batch, without_idle_critic

FULL_RATE = 1e-6
"""Learning rate of full training by reinforcement and from preferences."""
ADAPTER_FACTOR = 10.0
"""Rate of an adapter over that of full training."""


def cautions(run: RunConfig, selections: Selections, labels: Labels) -> tuple[str, ...]:
    """Return one warning for each combination that is probably not meant, of a configuration that passed all checks."""
    return (
        *_truncated_sampling(run, labels),
        *_later_updates(run, selections, labels),
        *small_adapter_rates(without_idle_critic(selections, labels), labels),
        *blind_rewards(selections, labels),
    )


def small_adapter_rates(
    selections: Selections, labels: Labels, full_rate: float = FULL_RATE
) -> Iterator[str]:
    """Warn of adapters that are trained at the learning rate of full training.

    Args:
        full_rate: the command's default for full training.

    Source: https://thinkingmachines.ai/blog/lora/ (Schulman et al. 2025), where LoRA's best learning rate was about 10
    times that of full training, over models and tasks, for supervised training and for policy gradients.
    """
    for role in ("actor", "critic"):
        for adapter in selections.get(f"{role}.adapter", ()):
            (optimizer,) = selections[f"{role}.optim"]
            rate = getattr(optimizer.options, "lr", None)
            if rate is not None and rate < ADAPTER_FACTOR * full_rate:
                yield (
                    f"{labels(f'{role}.adapter')} {adapter.registered.name} with a learning rate of {rate:g}: adapters "
                    "learn best at about 10 times the rate of full training "
                    "(https://thinkingmachines.ai/blog/lora/). Try "
                    f"--{optimizer.section}.lr {ADAPTER_FACTOR * full_rate:g} or more."
                )


def _truncated_sampling(run: RunConfig, labels: Labels) -> Iterator[str]:
    """Warn of top_p, top_k and min_p.

    The trainer's probabilities are those of the whole vocabulary, at the sampling temperature. Samples of a truncated
    distribution are off-policy from the first update on, and nothing weighs them: corrections refuse them.

    Source of the figures: https://github.com/huggingface/trl/pull/7269, Qwen2.5-1.5B-Instruct in vLLM at temperature 1,
    where top_p 0.8 was set beside top_k 1024 (which alone gives 0.995).
    """
    rollout = run.rollout
    if not rollout.params().truncates:
        return
    in_use = {"top_p": rollout.top_p < 1, "top_k": rollout.top_k > 0, "min_p": rollout.min_p > 0}
    written = [
        f"{labels(f'rollout.{name}')} {getattr(rollout, name):g}"
        for name, on in in_use.items()
        if on
    ]
    yield (
        f"{', '.join(written)}: samples come from a truncated distribution, and the loss trains the whole one as if "
        "they came from it. The ratio of the two is the probability that truncation keeps: with top_p 0.8 it was "
        "measured as 0.896 on average, and outside [0.9, 1.1] for 51.8 % of the tokens; with top_k 20 as 0.965, and "
        "16.2 % (huggingface/trl#7269). Nothing weighs samples for it. To train what is sampled, sample with the "
        "temperature alone: --rollout.top_p 1 --rollout.top_k 0 --rollout.min_p 0."
    )


def _later_updates(run: RunConfig, selections: Selections, labels: Labels) -> Iterator[str]:
    """Warn of a loss without a ratio where a batch gives several updates.

    From the second update on, samples come from an older policy than the one that is trained, which only a ratio
    corrects. No error: imitating samples that were kept, as RAFT does, is right whoever wrote them.
    """
    updates = updates_per_batch(run)
    (loss,) = selections["algo.loss.policy"]
    if updates > 1 and not is_off_policy(loss):
        yield (
            f"{labels('algo.loss.policy')} {loss.registered.name}: a rollout batch gives {updates} updates, and the "
            "loss does not say that it allows for samples of an older policy (provides 'off_policy'). If it has no "
            "ratio, its gradient is biased from the second update on. For one update: --train.inner_epochs 1, and no "
            "--train.batch_size."
        )


def blind_rewards(selections: Selections, labels: Labels) -> Iterator[str]:
    """Yield a warning for each reward that judges answers about images by text alone."""
    if not selections["model.vision"]:
        return
    for reward in selections["reward.use"]:
        # One whose options need images sees them.
        if READS_TEXT in reward.registered.component.provides and "images" not in reward.needs:
            yield (
                f"{labels('reward.use')} {reward.registered.name} reads text alone: the policy sees the images of "
                "prompts and observations, and this reward does not. It can tell how an answer reads, not whether it "
                "is true of an image."
            )
