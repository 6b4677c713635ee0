"""Refusal of options that contradict each other. Each message names both options and a way out."""

from __future__ import annotations

import string
from collections.abc import Iterator

from rlhf_core.capabilities import (
    NO_PULL,
    PREPARES_STEP,
    REWARDS_EPISODES,
    SEVERAL_TURNS,
)
from rlhf_core.contracts.external import ExternalConfig
from rlhf_core.errors import ConfigError
from rlhf_core.plugins import Plugins

from ..problems import Labels, flag, missing
from ..resolved import EnvironmentOptions, Selections
from ..run import RunConfig
from .eval_names import best_metric_problems
from .features import (
    environment_shares,
    is_off_policy,
    renormalizes,
    updates_per_batch,
    weighs_samples,
)
from .held_out import held_out_problems, set_names
from .in_process import in_process_rules
from .mixes import mix_problems
from .reward_rules import missing_reward, reward_rules


def check(run: RunConfig, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    """Refuse contradictory options.

    Raises:
        ConfigError: names the options as they were written and what to change.
    """
    for problem in (
        *_task_rules(run, selections, labels, plugins),
        *_share_rules(selections, labels),
        *_external_rules(selections, labels),
        *_data_rules(run, labels),
        *_sampling_rules(run, labels),
        *_training_rules(run, labels),
        *_old_logprobs_rules(run, selections, labels),
        *_staleness_rules(run, selections, labels),
        *_kl_rules(run, selections, labels, plugins),
        *_teacher_rules(run, selections, labels),
        *_term_rules(selections, labels),
        *reward_rules(selections, labels),
        *_evaluation_rules(run, labels),
        *in_process_rules(selections, labels),
    ):
        raise ConfigError(problem)


def _task_rules(
    run: RunConfig, selections: Selections, labels: Labels, plugins: Plugins
) -> Iterator[str]:
    environment = selections["env.use"]
    if not run.data.train and run.data.source is None and not environment:
        yield missing(
            "--data",
            "expected data files, or an environment that makes its own tasks",
            "Add --data FILE.jsonl or --env NAME.",
            emptied=labels("data.train") if labels.is_set("data.train") else None,
        )
    (executor,) = selections["rollout.executor"]
    is_rewarded = REWARDS_EPISODES in executor.registered.component.provides
    yield from missing_reward(selections, labels)
    if environment and not any(
        "environment" in selection.registered.component.needs
        for found in selections.values()
        for selection in found
    ):
        able = [
            entry.name
            for entry in plugins.registries["rlhf_rollout_executors"]
            if "environment" in entry.component.needs
        ]
        yield (
            f"{labels('env.use')} {environment[0].registered.name}: "
            f"{labels('rollout.executor')} {executor.registered.name} never plays an environment.\n"
            f"  Choose one that does: {' or '.join(f'--executor {name}' for name in able) or 'none is installed'}."
        )
    if (
        (environment or is_rewarded)
        and run.rollout.max_length is None
        and SEVERAL_TURNS in executor.registered.component.provides
    ):
        yield (
            "--rollout.max_length is required with several turns: prompt, all answers and what the environment says "
            f"share it. Set for example --rollout.max_length "
            f"{run.data.max_prompt_tokens + 4 * run.rollout.max_new_tokens}."
        )


def _share_rules(selections: Selections, labels: Labels) -> Iterator[str]:
    shares = environment_shares(selections["env.use"])
    if left_out := sorted(name for name, share in shares.items() if share <= 0.0):
        yield (
            f"{labels('env.use')}: the shares of the other environments add up to 1 or more, so nothing is left for "
            f"{left_out[0]}. Give it a share too: {left_out[0]}=0.5."
        )


def _external_rules(selections: Selections, labels: Labels) -> Iterator[str]:
    for each in selections["env.use"]:
        place = (each.environment or EnvironmentOptions()).isolation
        if isinstance(each.options, ExternalConfig) and place == "none":
            yield (
                f"{labels(f'{each.section}.isolation')} is none, but this process does not have {each.options.name}.\n"
                f"  Say where it runs: --{each.section}.isolation venv --{each.section}.python FOLDER, or remote and "
                f"--{each.section}.address HOST:PORT."
            )


def no_reader(labels: Labels) -> str:
    """Return the error text for a column of images and a model that reads text alone."""
    return (
        f"{labels('data.image_key')}: the run's model reads text alone. Choose what reads images with "
        "--model.vision, or leave the option out."
    )


def _data_rules(run: RunConfig, labels: Labels) -> Iterator[str]:
    data = run.data
    if data.source is not None and data.train:
        yield (
            f"{labels('data.source')} and {labels('data.train')}: rows come from one of them. Leave the other out, or "
            "mix the sets in the source."
        )
    if data.source is not None and run.train.steps is None and data.max_samples is None:
        yield (
            f"{labels('data.source')}: a source has no known end, so there are no epochs to count. Set --steps 100, or "
            "--data.max_samples to say how many rows make an epoch."
        )
    yield from mix_problems(data.probabilities, data.train, labels)
    if any(not source.strip() for source in data.train):
        yield f"{labels('data.train')}: expected names of data sets; one of them is empty. Leave it out."
    if data.image_key and run.model.vision is None:
        yield no_reader(labels)
    if data.template is not None:
        yield from _template_rules(data.template, labels)
        if labels.is_typed("data.prompt_key"):
            yield (
                f"{labels('data.prompt_key')} and {labels('data.template')}: the template makes the prompt, so the "
                "prompt column would not be read. Leave one out."
            )
        if data.system_prompt is not None and not data.chat:
            yield (
                f"{labels('data.system_prompt')}: a template makes plain text, which has no place for it. "
                "Add --data.chat, or put it into the template."
            )


def _template_rules(template: str, labels: Labels) -> Iterator[str]:
    label = labels("data.template")
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        yield f"{label}: {error}. Write braces that are meant literally twice: {{{{ and }}}}."
        return
    if not fields:
        yield f"{label}: it uses no column, so every prompt would be the same. Write a column as {{name}}."
    if any(not name or name.isdigit() for name in fields):
        yield f"{label}: expected column names between the braces, such as {{question}}; got {{}}"


def _sampling_rules(run: RunConfig, labels: Labels) -> Iterator[str]:
    rollout, data = run.rollout, run.data
    if rollout.min_new_tokens > rollout.max_new_tokens:
        yield (
            f"{labels('rollout.min_new_tokens')} is {rollout.min_new_tokens}; expected at most "
            f"{labels('rollout.max_new_tokens')} = {rollout.max_new_tokens}"
        )
    if (
        rollout.max_length is not None
        and data.train
        and rollout.max_length <= data.max_prompt_tokens
    ):
        yield (
            f"{labels('rollout.max_length')} is {rollout.max_length}, but prompts may take "
            f"{labels('data.max_prompt_tokens')} = {data.max_prompt_tokens} tokens, which leaves no room to answer.\n"
            f"  Set --data.max_prompt_tokens below {rollout.max_length}."
        )
    if any(not text for text in rollout.stop):
        yield f"{labels('rollout.stop')}: an empty string would end every turn at once; leave it out"
    if rollout.top_k == 1 and rollout.n_samples_per_prompt > 1:
        yield (
            f"{labels('rollout.top_k')} is 1: all {rollout.n_samples_per_prompt} samples of a prompt would be the "
            "same, and nothing is learned from equal samples. Set --rollout.top_k 0."
        )


def _training_rules(run: RunConfig, labels: Labels) -> Iterator[str]:
    train = run.train
    sequences = run.rollout.batch_size * run.rollout.n_samples_per_prompt
    rollouts = (
        f"a step has {run.rollout.batch_size} prompts x {run.rollout.n_samples_per_prompt} samples"
        f" = {sequences} sequences"
    )
    size = train.batch_size
    if size is not None and size > sequences:
        yield f"{labels('train.batch_size')} is {size}, but {rollouts}. Set --train.batch_size {sequences} or less."
    elif size is not None and sequences % size:
        divisor = max(part for part in range(1, size) if sequences % part == 0)
        yield (
            f"{labels('train.batch_size')} is {size}: {rollouts}, which it does not divide. "
            f"Set --train.batch_size {divisor}."
        )
    longest = run.rollout.max_length or run.data.max_prompt_tokens + run.rollout.max_new_tokens
    if longest > train.max_tokens_per_micro_batch:
        yield (
            f"{labels('train.max_tokens_per_micro_batch')} is {train.max_tokens_per_micro_batch}, but one sequence "
            f"may have {longest} tokens. Set --train.max_tokens_per_micro_batch {longest} or shorten the sequences."
        )
    if (
        train.steps is not None
        and labels.is_typed("train.steps")
        and labels.is_typed("train.epochs")
    ):
        yield (
            f"{labels('train.steps')} and {labels('train.epochs')}: both say how long to train; the steps would win. "
            "Leave one out."
        )


def _old_logprobs_rules(run: RunConfig, selections: Selections, labels: Labels) -> Iterator[str]:
    mode, label = run.algo.loss.old_logprobs, labels("algo.loss.old_logprobs")
    updates = updates_per_batch(run)
    if mode == "reuse" and updates > 1:
        yield (
            f"{label} reuse: a rollout batch gives {updates} updates, and only the first could reuse its own pass.\n"
            "  Set --algo.loss.old_logprobs auto, or one update per batch."
        )
    if mode == "rollout" and renormalizes(run):
        yield (
            f"{label} rollout: with top_p, top_k, min_p or min_new_tokens the sampler's log-probs are those of another "
            "distribution, so the ratio would be wrong.\n  Set --algo.loss.old_logprobs auto, or sample without them."
        )
    if mode == "rollout" and selections["algo.correction.kind"]:
        yield (
            f"{label} rollout and {labels('algo.correction.kind')}: the correction compares the old log-probs with the "
            "sampler's, which would be the same numbers. Leave one out."
        )


def _staleness_rules(run: RunConfig, selections: Selections, labels: Labels) -> Iterator[str]:
    rollout, mode = run.rollout, run.algo.loss.old_logprobs
    label = labels("rollout.max_staleness")
    if not rollout.max_staleness or weighs_samples(selections):
        return
    (loss,) = selections["algo.loss.policy"]
    if not is_off_policy(loss):
        name = loss.registered.name
        yield (
            f"{label} {rollout.max_staleness} and {labels('algo.loss.policy')} {name}: nothing would weigh samples for "
            f"having come from an older policy. {name} ({loss.registered.origin}) does not say that it allows for "
            "them; a loss whose gradient has the ratio exp(policy_logprobs - old_logprobs) says so with "
            "provides={'off_policy'}.\n"
            "  Set a correction: --algo.correction.kind tis; or --rollout.max_staleness 0; or another --loss."
        )
    if mode in ("reuse", "recompute"):
        yield (
            f"{labels('algo.loss.old_logprobs')} {mode} and {label} {rollout.max_staleness}: the ratio would start "
            "from the trainer's own policy, and nothing would weigh the samples for having come from an older one.\n"
            "  Set --algo.loss.old_logprobs auto, or a correction: --algo.correction.kind tis."
        )
    if mode == "auto" and renormalizes(run):
        yield (
            f"{label} {rollout.max_staleness}: samples of older weights have to be weighed by the sampler's log-probs, "
            "which with top_p, top_k, min_p or min_new_tokens are those of another distribution.\n"
            "  Sample without them, or set --rollout.max_staleness 0."
        )


def _kl_rules(
    run: RunConfig, selections: Selections, labels: Labels, plugins: Plugins
) -> Iterator[str]:
    kl, (estimator,) = run.algo.kl, selections["algo.kl.estimator"]
    if kl.target is not None and kl.coef == 0:
        yield (
            f"{labels('algo.kl.target')} adapts {flag('algo.kl.coef')}, which is 0 and would stay 0. "
            "Set --algo.kl.coef 0.01 to start from."
        )
    is_loss = kl.mode == "loss" and kl.coef > 0 and not kl.unbiased_gradient
    if is_loss and NO_PULL in estimator.registered.component.provides:
        able = [
            entry.name
            for entry in plugins.registries["rlhf_kl_estimators"]
            if NO_PULL not in entry.component.provides
        ]
        others = f"--algo.kl.estimator {' or '.join(able)}, " if able else ""
        yield (
            f"{labels('algo.kl.mode')} loss with {flag('algo.kl.estimator')} {estimator.registered.name}: its gradient "
            f"is zero on average, so it would not hold the policy back.\n  Set {others}--algo.kl.mode reward, or "
            "--algo.kl.unbiased_gradient."
        )


def _teacher_rules(run: RunConfig, selections: Selections, labels: Labels) -> Iterator[str]:
    if run.algo.teacher.path is not None:
        return
    for found in selections.values():
        for selection in found:
            if selection.needs & {"teacher_logprobs", "teacher_top_k"}:
                yield (
                    f"{labels(selection.slot)} {selection.registered.name} learns from a teacher, and none is given. "
                    "Set --algo.teacher.path MODEL."
                )


def _term_rules(selections: Selections, labels: Labels) -> Iterator[str]:
    for selection in selections["algo.loss.policy"]:
        if "supervised_data" in selection.needs:
            yield (
                f"{labels('algo.loss.policy')} {selection.registered.name} learns from given responses, not from "
                f"rollouts. Use it as a further loss: --algo.terms.use {selection.registered.name} in place of --loss."
            )
    for selection in selections["algo.terms.use"]:
        if PREPARES_STEP in selection.registered.component.provides:
            yield (
                f"{labels('algo.terms.use')} {selection.registered.name}: it has to see the whole step first, which "
                f"only the policy loss can. Set --loss {selection.registered.name} in place of --algo.terms.use."
            )


def _evaluation_rules(run: RunConfig, labels: Labels) -> Iterator[str]:
    evaluation = run.eval
    yield from held_out_problems(evaluation, run.data.train, labels)
    if run.data.source is not None and len(run.env.use) > 1:
        yield (
            f"{labels('data.source')} and {labels('env.use')}: rows of a source go to one environment; expected at "
            "most one"
        )
    if held_out := set_names(evaluation, run.data.train):
        yield from best_metric_problems(run, held_out)
    if evaluation.every and not held_out and not run.may_play_held_out:
        yield (
            f"{labels('eval.every')} is {evaluation.every}, but there is nothing to evaluate on. Set --eval.data FILE, "
            "or --eval.fraction 0.05 to hold rows out of --data; or --eval.every 0."
        )
    for temperature in evaluation.temperatures:
        if not 0.0 <= temperature <= 10.0:
            yield f"{labels('eval.temperatures')}: expected 0 (greedy) to 10, got {temperature:g}"
    if len(set(evaluation.temperatures)) < len(evaluation.temperatures):
        yield f"{labels('eval.temperatures')}: the same temperature is given twice. Leave one out."
    if evaluation.n_samples > 1 and not any(evaluation.temperatures):
        yield (
            f"{labels('eval.n_samples')} is {evaluation.n_samples}, but at temperature 0 all samples of a prompt are "
            "the same. Set --eval.temperatures 1.0, or --eval.n_samples 1."
        )
    if run.checkpoint.named_metric is not None and not held_out and not run.may_play_held_out:
        yield (
            f"{labels('checkpoint.best_metric')}: there is no evaluation to take it from. "
            "Add --eval.data FILE or --eval.fraction 0.05."
        )
