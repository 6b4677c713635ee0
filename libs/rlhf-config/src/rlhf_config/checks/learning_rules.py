"""Refusal of options of sampling, losses and updates that contradict each other: a run with them would learn nothing,
or something else than they say."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_core.capabilities import KEEPS_REFERENCE, NO_PULL, PREPARES_STEP
from rlhf_core.errors import ConfigError
from rlhf_core.plugins import Plugins

from ..problems import Labels, flag
from ..resolved import Selections
from ..run import RunConfig
from ..trained_roles import ReferenceSync
from .features import is_off_policy, needs, renormalizes, updates_per_batch, weighs_samples


def learning_rules(
    run: RunConfig, selections: Selections, labels: Labels, plugins: Plugins
) -> Iterator[ConfigError]:
    """Yield the contradictions among the options of a step, from its samples to its updates."""
    yield from _sampling_rules(run, labels)
    yield from _training_rules(run, labels)
    if run.train.steps is not None and "values" in needs(selections, labels):
        yield from resting_policy(run, run.train.steps)
    yield from _old_logprobs_rules(run, selections, labels)
    yield from _staleness_rules(run, selections, labels)
    yield from _kl_rules(run, selections, labels, plugins)
    yield from reference_rules(run.ref, selections, labels)
    yield from _teacher_rules(run, selections, labels)
    yield from _term_rules(selections, labels)


def resting_policy(run: RunConfig, steps: int) -> Iterator[ConfigError]:
    """Yield the problem of a run with a critic whose policy rests in all of its steps."""
    warmup = run.critic.warmup_steps
    if warmup >= steps:
        yield ConfigError(
            f"critic.warmup_steps is {warmup}, but the run has {steps} steps, and the policy learns in those after the "
            f"critic's. Set --critic.warmup_steps {steps - 1} or less, or let the run have more steps.",
            code="config/policy-never-trained",
        )


def _sampling_rules(run: RunConfig, labels: Labels) -> Iterator[ConfigError]:
    rollout, data = run.rollout, run.data
    if rollout.min_new_tokens > rollout.max_new_tokens:
        yield ConfigError(
            f"{labels('rollout.min_new_tokens')} is {rollout.min_new_tokens}; expected at most "
            f"{labels('rollout.max_new_tokens')} = {rollout.max_new_tokens}",
            code="config/min-above-max-tokens",
        )
    if (
        rollout.max_length is not None
        and data.train
        and rollout.max_length <= data.max_prompt_tokens
    ):
        yield ConfigError(
            f"{labels('rollout.max_length')} is {rollout.max_length}, but prompts may take "
            f"{labels('data.max_prompt_tokens')} = {data.max_prompt_tokens} tokens, which leaves no room to answer.\n"
            f"  Set --data.max_prompt_tokens below {rollout.max_length}.",
            code="config/no-room-to-answer",
        )
    if any(not text for text in rollout.stop):
        yield ConfigError(
            f"{labels('rollout.stop')}: an empty string would end every turn at once; leave it out",
            code="config/empty-stop",
        )
    if rollout.top_k == 1 and rollout.n_samples_per_prompt > 1:
        yield ConfigError(
            f"{labels('rollout.top_k')} is 1: all {rollout.n_samples_per_prompt} samples of a prompt would be the "
            "same, and nothing is learned from equal samples. Set --rollout.top_k 0.",
            code="config/equal-samples",
        )


def _training_rules(run: RunConfig, labels: Labels) -> Iterator[ConfigError]:
    train = run.train
    sequences = run.rollout.batch_size * run.rollout.n_samples_per_prompt
    rollouts = (
        f"a step has {run.rollout.batch_size} prompts x {run.rollout.n_samples_per_prompt} samples"
        f" = {sequences} sequences"
    )
    size = train.batch_size
    if size is not None and size > sequences:
        yield ConfigError(
            f"{labels('train.batch_size')} is {size}, but {rollouts}. Set --train.batch_size {sequences} or less.",
            code="config/batch-above-rollouts",
        )
    elif size is not None and sequences % size:
        divisor = max(part for part in range(1, size) if sequences % part == 0)
        yield ConfigError(
            f"{labels('train.batch_size')} is {size}: {rollouts}, which it does not divide. "
            f"Set --train.batch_size {divisor}.",
            code="config/batch-does-not-divide",
        )
    longest = run.longest_sequence
    if longest > train.max_tokens_per_micro_batch:
        yield ConfigError(
            f"{labels('train.max_tokens_per_micro_batch')} is {train.max_tokens_per_micro_batch}, but one sequence "
            f"may have {longest} tokens. Set --train.max_tokens_per_micro_batch {longest} or shorten the sequences.",
            code="config/pass-too-small",
        )


def _old_logprobs_rules(
    run: RunConfig, selections: Selections, labels: Labels
) -> Iterator[ConfigError]:
    mode, label = run.algo.loss.old_logprobs, labels("algo.loss.old_logprobs")
    updates = updates_per_batch(run)
    if mode == "reuse" and updates > 1:
        yield ConfigError(
            f"{label} reuse: a rollout batch gives {updates} updates, and only the first could reuse its own pass.\n"
            "  Set --algo.loss.old_logprobs auto, or one update per batch.",
            code="config/reuse-with-several-updates",
        )
    if mode == "rollout" and renormalizes(run):
        yield ConfigError(
            f"{label} rollout: with top_p, top_k, min_p or min_new_tokens the sampler's log-probs are those of another "
            "distribution, so the ratio would be wrong.\n  Set --algo.loss.old_logprobs auto, or sample without them.",
            code="config/logprobs-of-another-distribution",
        )
    if run.algo.loss.off_policy_mask is not None and renormalizes(run):
        yield ConfigError(
            f"{labels('algo.loss.off_policy_mask')} {run.algo.loss.off_policy_mask:g}: with top_p, top_k, min_p or "
            "min_new_tokens the sampler's log-probs are those of another distribution, so sequences would look farther "
            "away than they are.\n  Sample without them, or leave the option out.",
            code="config/logprobs-of-another-distribution",
        )
    if mode == "rollout" and selections["algo.correction.kind"]:
        yield ConfigError(
            f"{label} rollout and {labels('algo.correction.kind')}: the correction compares the old log-probs with the "
            "sampler's, which would be the same numbers. Leave one out.",
            code="config/correction-of-nothing",
        )


def _staleness_rules(
    run: RunConfig, selections: Selections, labels: Labels
) -> Iterator[ConfigError]:
    rollout, mode = run.rollout, run.algo.loss.old_logprobs
    label = labels("rollout.max_staleness")
    if not rollout.max_staleness or weighs_samples(selections):
        return
    (loss,) = selections["algo.loss.policy"]
    if not is_off_policy(loss):
        name = loss.registered.name
        yield ConfigError(
            f"{label} {rollout.max_staleness} and {labels('algo.loss.policy')} {name}: nothing would weigh samples for "
            f"having come from an older policy. {name} ({loss.registered.origin}) does not say that it allows for "
            "them; a loss whose gradient has the ratio exp(policy_logprobs - old_logprobs) says so with "
            "provides={'off_policy'}.\n"
            "  Set a correction: --algo.correction.kind tis; or --rollout.max_staleness 0; or another --loss.",
            code="config/stale-samples-unweighed",
        )
    if mode in ("reuse", "recompute"):
        yield ConfigError(
            f"{labels('algo.loss.old_logprobs')} {mode} and {label} {rollout.max_staleness}: the ratio would start "
            "from the trainer's own policy, and nothing would weigh the samples for having come from an older one.\n"
            "  Set --algo.loss.old_logprobs auto, or a correction: --algo.correction.kind tis.",
            code="config/stale-samples-as-own",
        )
    if mode == "auto" and renormalizes(run):
        yield ConfigError(
            f"{label} {rollout.max_staleness}: samples of older weights have to be weighed by the sampler's log-probs, "
            "which with top_p, top_k, min_p or min_new_tokens are those of another distribution.\n"
            "  Sample without them, or set --rollout.max_staleness 0.",
            code="config/stale-samples-of-another-distribution",
        )


def _kl_rules(
    run: RunConfig, selections: Selections, labels: Labels, plugins: Plugins
) -> Iterator[ConfigError]:
    kl, (estimator,) = run.algo.kl, selections["algo.kl.estimator"]
    if kl.target is not None and kl.coef == 0:
        yield ConfigError(
            f"{labels('algo.kl.target')} adapts {flag('algo.kl.coef')}, which is 0 and would stay 0. "
            "Set --algo.kl.coef 0.01 to start from.",
            code="config/kl-target-without-coef",
        )
    is_loss = kl.mode == "loss" and kl.coef > 0 and not kl.unbiased_gradient
    if is_loss and NO_PULL in estimator.registered.component.provides:
        able = [
            entry.name
            for entry in plugins.registries["rlhf_kl_estimators"]
            if NO_PULL not in entry.component.provides
        ]
        others = f"--algo.kl.estimator {' or '.join(able)}, " if able else ""
        yield ConfigError(
            f"{labels('algo.kl.mode')} loss with {flag('algo.kl.estimator')} {estimator.registered.name}: its gradient "
            f"is zero on average, so it would not hold the policy back.\n  Set {others}--algo.kl.mode reward, or "
            "--algo.kl.unbiased_gradient.",
            code="config/kl-without-pull",
        )


def reference_rules(
    ref: ReferenceSync, selections: Selections, labels: Labels
) -> Iterator[ConfigError]:
    """Yield what keeps a reference from following the policy."""
    if ref.sync_every is None:
        return
    label, (backend,) = labels("ref.sync_every"), selections["backend.name"]
    if KEEPS_REFERENCE not in backend.registered.component.provides:
        yield ConfigError(
            f"{label} with {labels('backend.name')} {backend.name}: this training backend keeps no reference beside "
            "the weights. Choose --backend torch, deepspeed or fsdp, or leave --ref.sync_every out.",
            code="config/no-reference-to-sync",
        )
    if getattr(ref, "path", None) is not None:
        yield ConfigError(
            f"{label} and {labels('ref.path')}: a reference that follows the policy begins as the policy does, not as "
            "another model. Leave one of the two out.",
            code="config/sync-of-another-model",
        )
    if ref.sync_alpha < 1.0 and selections["actor.adapter"]:
        yield ConfigError(
            f"{label} with {labels('ref.sync_alpha')} {ref.sync_alpha:g} and {labels('actor.adapter')}: the weights of "
            "an adapter are factors, and the mean of two adapters' factors is no mean of what they add to the model.\n"
            "  Set --ref.sync_alpha 1, with which the reference becomes the policy, or leave the adapter out.",
            code="config/sync-mixes-adapters",
        )


def _teacher_rules(run: RunConfig, selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    if run.algo.teacher.path is not None:
        return
    for found in selections.values():
        for selection in found:
            if selection.needs & {"teacher_logprobs", "teacher_top_k"}:
                yield ConfigError(
                    f"{labels(selection.slot)} {selection.registered.name} learns from a teacher, and none is given. "
                    "Set --algo.teacher.path MODEL.",
                    code="config/no-teacher",
                )


def _term_rules(selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    for selection in selections["algo.loss.policy"]:
        if "supervised_data" in selection.needs:
            yield ConfigError(
                f"{labels('algo.loss.policy')} {selection.registered.name} learns from given responses, not from "
                f"rollouts. Use it as a further loss: --algo.terms.use {selection.registered.name} in place of --loss.",
                code="config/term-as-policy-loss",
            )
    for selection in selections["algo.terms.use"]:
        if PREPARES_STEP in selection.registered.component.provides:
            yield ConfigError(
                f"{labels('algo.terms.use')} {selection.registered.name}: it has to see the whole step first, which "
                f"only the policy loss can. Set --loss {selection.registered.name} in place of --algo.terms.use.",
                code="config/policy-loss-as-term",
            )
