"""Refusal of options that contradict each other. Each message names both options and a way out."""

from __future__ import annotations

import string
from collections.abc import Iterator

from rlhf_core.capabilities import IN_PROCESS, REWARDS_EPISODES, SEVERAL_TURNS
from rlhf_core.contracts.external import ExternalConfig
from rlhf_core.errors import ConfigError
from rlhf_core.plugins import GIVEN, Plugins

from ..problems import Labels, missing
from ..resolved import EnvironmentOptions, Selections
from ..run import RunConfig
from .eval_names import eval_name_problems
from .features import environment_shares
from .held_out import held_out_problems, set_names
from .learning_rules import learning_rules
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
        *learning_rules(run, selections, labels, plugins),
        *reward_rules(run, selections, labels),
        *_evaluation_rules(run, selections, labels),
        *in_process_rules(selections, labels),
    ):
        raise problem


def _task_rules(
    run: RunConfig, selections: Selections, labels: Labels, plugins: Plugins
) -> Iterator[ConfigError]:
    environment = selections["env.use"]
    if not run.data.train and run.data.source is None and not environment:
        yield ConfigError(
            missing(
                "--data",
                "expected data files, or an environment that makes its own tasks",
                "Add --data FILE.jsonl or --env NAME.",
                emptied=labels("data.train") if labels.is_set("data.train") else None,
            ),
            code="config/no-tasks",
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
        yield ConfigError(
            f"{labels('env.use')} {environment[0].registered.name}: "
            f"{labels('rollout.executor')} {executor.registered.name} never plays an environment.\n"
            f"  Choose one that does: {' or '.join(f'--executor {name}' for name in able) or 'none is installed'}.",
            code="config/environment-not-played",
        )
    if (
        (environment or is_rewarded)
        and run.rollout.max_length is None
        and SEVERAL_TURNS in executor.registered.component.provides
    ):
        yield ConfigError(
            "--rollout.max_length is required with several turns: prompt, all answers and what the environment says "
            f"share it. Set for example --rollout.max_length "
            f"{run.data.max_prompt_tokens + 4 * run.rollout.max_new_tokens}.",
            code="config/no-max-length",
        )


def _share_rules(selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    shares = environment_shares(selections["env.use"])
    if left_out := sorted(name for name, share in shares.items() if share <= 0.0):
        yield ConfigError(
            f"{labels('env.use')}: the shares of the other environments add up to 1 or more, so nothing is left for "
            f"{left_out[0]}. Give it a share too: {left_out[0]}=0.5.",
            code="config/no-share-left",
        )


def _external_rules(selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    for each in selections["env.use"]:
        place = (each.environment or EnvironmentOptions()).isolation
        if isinstance(each.options, ExternalConfig) and place == "none":
            yield ConfigError(
                f"{labels(f'{each.section}.isolation')} is none, but this process does not have {each.options.name}.\n"
                f"  Say where it runs: --{each.section}.isolation venv --{each.section}.python FOLDER, or remote and "
                f"--{each.section}.address HOST:PORT.",
                code="config/environment-not-here",
            )


def no_reader(labels: Labels) -> ConfigError:
    """Return the error for a column of images and a model that reads text alone."""
    return ConfigError(
        f"{labels('data.image_key')}: the run's model reads text alone. Choose what reads images with "
        "--model.vision, or leave the option out.",
        code="config/no-reader-of-images",
    )


def _data_rules(run: RunConfig, labels: Labels) -> Iterator[ConfigError]:
    data = run.data
    if data.source is not None and data.train:
        yield ConfigError(
            f"{labels('data.source')} and {labels('data.train')}: rows come from one of them. Leave the other out, or "
            "mix the sets in the source.",
            code="config/source-and-sets",
        )
    if data.source is not None and run.train.steps is None and data.max_samples is None:
        yield ConfigError(
            f"{labels('data.source')}: a source has no known end, so there are no epochs to count. Set --steps 100, or "
            "--data.max_samples to say how many rows make an epoch.",
            code="config/steps-missing",
        )
    yield from mix_problems(data.probabilities, data.train, labels)
    if any(not source.strip() for source in data.train):
        yield ConfigError(
            f"{labels('data.train')}: expected names of data sets; one of them is empty. Leave it out.",
            code="config/unnamed-set",
        )
    if data.image_key and run.model.vision is None:
        yield no_reader(labels)
    if data.template is not None:
        yield from _template_rules(data.template, labels)
        if labels.is_typed("data.prompt_key"):
            yield ConfigError(
                f"{labels('data.prompt_key')} and {labels('data.template')}: the template makes the prompt, so the "
                "prompt column would not be read. Leave one out.",
                code="config/template-and-prompt-column",
            )
        if data.system_prompt is not None and not data.chat:
            yield ConfigError(
                f"{labels('data.system_prompt')}: a template makes plain text, which has no place for it. "
                "Add --data.chat, or put it into the template.",
                code="config/system-prompt-of-plain-text",
            )


def _template_rules(template: str, labels: Labels) -> Iterator[ConfigError]:
    label = labels("data.template")
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        yield ConfigError(
            f"{label}: {error}. Write braces that are meant literally twice: {{{{ and }}}}.",
            code="config/malformed-template",
        )
        return
    if not fields:
        yield ConfigError(
            f"{label}: it uses no column, so every prompt would be the same. Write a column as {{name}}.",
            code="config/template-without-column",
        )
    if any(not name or name.isdigit() for name in fields):
        yield ConfigError(
            f"{label}: expected column names between the braces, such as {{question}}; got {{}}",
            code="config/template-without-names",
        )


def _evaluation_rules(
    run: RunConfig, selections: Selections, labels: Labels
) -> Iterator[ConfigError]:
    evaluation = run.eval
    yield from held_out_problems(evaluation, run.data.train, labels)
    if run.data.source is not None and len(run.env.use) > 1:
        yield ConfigError(
            f"{labels('data.source')} and {labels('env.use')}: rows of a source go to one environment; expected at "
            "most one",
            code="config/source-of-several-environments",
        )
    held_out = set_names(evaluation, run.data.train)
    if held_out or not run.may_play_held_out:
        yield from eval_name_problems(run, selections, held_out, labels)
    if evaluation.every and not held_out and not run.may_play_held_out:
        yield ConfigError(
            f"{labels('eval.every')} is {evaluation.every}, but there is nothing to evaluate on. Set --eval.data FILE, "
            "or --eval.fraction 0.05 to hold rows out of --data; or --eval.every 0.",
            code="eval/nothing-held-out",
        )
    for temperature in evaluation.temperatures:
        if not 0.0 <= temperature <= 10.0:
            yield ConfigError(
                f"{labels('eval.temperatures')}: expected 0 (greedy) to 10, got {temperature:g}",
                code="config/out-of-range",
            )
    if len(set(evaluation.temperatures)) < len(evaluation.temperatures):
        yield ConfigError(
            f"{labels('eval.temperatures')}: the same temperature is given twice. Leave one out.",
            code="config/temperature-twice",
        )
    if evaluation.n_samples > 1 and not any(evaluation.temperatures):
        yield ConfigError(
            f"{labels('eval.n_samples')} is {evaluation.n_samples}, but at temperature 0 all samples of a prompt are "
            "the same. Set --eval.temperatures 1.0, or --eval.n_samples 1.",
            code="config/equal-samples",
        )
    yield from _answers_of_evaluations(run, labels)


def _answers_of_evaluations(run: RunConfig, labels: Labels) -> Iterator[ConfigError]:
    evaluation, answer = run.eval, run.eval.max_new_tokens
    if answer is not None and answer < run.rollout.min_new_tokens:
        yield ConfigError(
            f"{labels('eval.max_new_tokens')} is {answer}; expected at least "
            f"{labels('rollout.min_new_tokens')} = {run.rollout.min_new_tokens}",
            code="config/min-above-max-tokens",
        )
    option = "rollout.max_length" if evaluation.max_length is None else "eval.max_length"
    longest, prompt = evaluation.max_length or run.rollout.max_length, run.data.max_prompt_tokens
    if longest is not None and answer is not None and answer >= longest:
        yield ConfigError(
            f"{labels('eval.max_new_tokens')} is {answer}, but a sequence, with its prompt, has at most "
            f"{labels(option)} = {longest} tokens. Set --eval.max_length {prompt + answer}.",
            code="config/no-room-to-answer",
        )
    elif evaluation.max_length is not None and evaluation.max_length <= prompt:
        yield ConfigError(
            f"{labels('eval.max_length')} is {longest}, but prompts may take {labels('data.max_prompt_tokens')} = "
            f"{prompt} tokens, which leaves no room to answer. Set --eval.max_length "
            f"{prompt + (answer or run.rollout.max_new_tokens)}.",
            code="config/no-room-to-answer",
        )


def in_process_rules(selections: Selections, labels: Labels) -> Iterator[ConfigError]:
    """Yield a problem for each component that needs objects of the run's process and is to be placed in another one."""
    for selection in (one for found in selections.values() for one in found):
        if IN_PROCESS not in selection.needs:
            continue
        if selection.registered.plugin == GIVEN:
            why = f"{selection.name} is an object of this Python program"
            advice = (
                "Leave the option out, or write the object into a file and name it FILE.py:NAME."
            )
        else:
            why = f"{selection.name} uses what the run's process holds in memory"
            advice = "Leave the option out, and set isolate = false for a reward."
        if selection.reward is not None and selection.reward.isolate:
            yield ConfigError(
                f"{labels(f'{selection.section}.isolate')} is true, but {why}, which another process does not have.\n"
                f"  {advice}",
                code="config/in-process-only",
            )
        place = selection.environment.isolation if selection.environment is not None else "none"
        if place != "none":
            yield ConfigError(
                f"{labels(f'{selection.section}.isolation')} is {place}, but {why}, which another process does not "
                f"have.\n  {advice}",
                code="config/in-process-only",
            )
