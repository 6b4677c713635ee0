"""Combinations of options that no evaluation can have, each refused with the option to change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rlhf_config import (
    Labels,
    NamedPaths,
    Selections,
    folder_problem,
    refuse_typed,
)
from rlhf_config.common import ImageData
from rlhf_core import ConfigError
from rlhf_core.capabilities import (
    ENGINE_SEES,
    EXECUTOR_SEES,
    REWARDS_EPISODES,
    SEVERAL_TURNS,
    Chosen,
)
from rlhf_core.capabilities import check as check_capabilities
from rlhf_core.plugins import Plugins

from ..serving.model_folder import exported_by, is_peft_folder
from ..serving.options import (
    ADAPTER,
    adapter_without_effect,
    check_adapter,
    images_without_effect,
)
from .options import EPISODES, EvalOptions, RemoteModel

_NOT_SENT = ("top_k", "min_p", "min_new_tokens", "executor", "max_length")
"""Options of ``rollout`` that a chat server has no word for, or that only an engine meets."""
_SEEING = frozenset({ENGINE_SEES, EXECUTOR_SEES})
"""Needs of what reads images: they go from the executor to the engine."""
_OF_MADE_PROMPTS = {
    "train",
    "max_prompt_tokens",
    "chat",
    "system_prompt",
    "control_words",
    "chat_template_kwargs",
}
_OF_MADE_PROMPTS |= ImageData.model_fields.keys() - {"image_key"}
"""Options of ``data`` by which prompts of environments are read, too."""


def check(run: EvalOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    """Refuse options that contradict each other.

    Raises:
        ConfigError: names the options and the fix.
        CapabilityError: a component lacks what it needs.
    """
    brings = selections["rollout.executor"][0].registered.component.provides
    for problem in (*_problems(run, labels, brings), *_remote_problems(run, labels)):
        raise problem
    if run.remote.url is None:
        _check_components(run, selections, labels)
        check_adapter(run.model, selections, labels)
    refuse_typed(_without_effect(run, selections), labels)


def _problems(run: EvalOptions, labels: Labels, brings: frozenset[str]) -> Iterator[ConfigError]:
    is_rewarded = bool(run.reward.use or run.env.use or REWARDS_EPISODES in brings)
    if not (run.model.path or run.remote.url):
        yield ConfigError(
            "rlhf eval: expected a model; got none. Write rlhf eval MODEL, or --remote.url http://HOST/v1.",
            code="config/no-model",
        )
    if run.model.path and run.remote.url:
        yield ConfigError(
            f"{labels('model.path')} {run.model.path} and {labels('remote.url')}: both say who answers. Leave one out.",
            code="config/model-and-server",
        )
    if run.overwrite and run.resume.checkpoint == "restart":
        yield ConfigError(
            f"{labels('overwrite')} and {labels('resume.checkpoint')} restart: one removes earlier results, the other "
            "keeps them. Leave one out.",
            code="config/overwrite-and-restart",
        )
    if not (run.data.train or run.env.use):
        yield ConfigError(
            "rlhf eval: expected tasks; got none. Add --data FILE.jsonl with --reward NAME, or --env NAME.",
            code="config/no-tasks",
        )
    if not is_rewarded:
        yield ConfigError(
            "rlhf eval: expected something that scores answers; got nothing. Add --reward NAME.",
            code="config/no-reward",
        )
    is_long = SEVERAL_TURNS in brings and bool(run.env.use or REWARDS_EPISODES in brings)
    if is_long and run.rollout.max_length is None and not run.remote.url:
        yield ConfigError(
            "--rollout.max_length is required with several turns: prompt, all answers and what the environment says "
            "have to fit in. Set it to the tokens of the longest episode.",
            code="config/no-max-length",
        )
    if run.model.adapter and is_peft_folder(run.model.path):
        yield ConfigError(
            f"{labels('model.adapter')} {run.model.adapter}: {run.model.path} is an adapter already. Give the base as "
            "the model, or leave --model.adapter out.",
            code="adapter/of-an-adapter",
        )
    if run.rollout.min_new_tokens > run.rollout.max_new_tokens:
        yield ConfigError(
            f"{labels('rollout.min_new_tokens')} {run.rollout.min_new_tokens}: expected at most "
            f"--rollout.max_new_tokens, which is {run.rollout.max_new_tokens}",
            code="config/min-above-max-tokens",
        )
    yield from _sampling_problems(run, labels)


def _sampling_problems(run: EvalOptions, labels: Labels) -> Iterator[ConfigError]:
    temperatures = run.eval.temperatures
    for temperature in temperatures:
        if not 0.0 <= temperature <= 10.0:
            yield ConfigError(
                f"{labels('eval.temperatures')}: expected 0 (greedy) to 10, got {temperature:g}",
                code="config/out-of-range",
            )
    if len(set(temperatures)) < len(temperatures):
        yield ConfigError(
            f"{labels('eval.temperatures')}: the same temperature is given twice. Leave one out.",
            code="config/temperature-twice",
        )
    if run.eval.n_samples > 1 and not any(temperatures) and not run.env.use:
        yield ConfigError(
            f"{labels('eval.n_samples')} is {run.eval.n_samples}, but at temperature 0 all episodes of a task are the "
            "same. Set --eval.temperatures 1.0, or --eval.n_samples 1.",
            code="config/equal-samples",
        )


def _remote_problems(run: EvalOptions, labels: Labels) -> Iterator[ConfigError]:
    url = run.remote.url
    if url is None:
        return
    label = f"{labels('remote.url')} {url}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        is_address = False
    if not is_address:
        yield ConfigError(
            f"{label}: expected an address such as http://localhost:8000/v1",
            code="remote/malformed-address",
        )
    elif parts.username or parts.password:
        yield ConfigError(
            f"{labels('remote.url')}: expected an address without a name or password; the key comes from the "
            f"environment variable {run.remote.key_variable}",
            code="remote/password-in-address",
        )
    if run.data.chat_template_kwargs:
        yield ConfigError(
            f"{labels('data.chat_template_kwargs')}: with --remote.url the server renders the messages, by its own "
            "chat template and options. Set it there, or leave it out.",
            code="remote/renders-itself",
        )
    if run.remote.model is None:
        yield ConfigError(
            f"{label}: expected the name of the model there. Add --remote.model NAME.",
            code="remote/no-model",
        )


def _check_components(run: EvalOptions, selections: Selections, labels: Labels) -> None:
    chosen = [
        Chosen(
            flag=labels(one.slot),
            registered=one.registered,
            options=one.options,
            added=_SEEING if one.slot == "model.vision" else frozenset(),
        )
        for group in selections.values()
        for one in group
    ]
    features = {"credits_tokens"}
    features |= {"environment"} if run.env.use else set()
    features |= {"reward"} if run.reward.use else set()
    features |= {"images"} if run.model.vision else set()
    check_capabilities(chosen, frozenset(features), run.eval.n_samples)


def _without_effect(run: EvalOptions, selections: Selections) -> Iterator[tuple[str, str]]:
    if run.remote.url is None:
        for name in RemoteModel.model_fields.keys() - {"url"}:
            yield f"remote.{name}", "nothing is asked of a server. Set --remote.url too."
    else:
        for name in _NOT_SENT:
            yield f"rollout.{name}", "a chat server is not told it. Leave that option out."
        for path in ("engine.name", "engines", "model.dtype", "model.serve", "model.adapter"):
            yield path, "the server at --remote.url answers. Leave that option out."
        yield "model.vision", "a server is asked in text alone. Leave that option out."
        yield "data.max_prompt_tokens", "there is no tokenizer that could count. Leave it out."
    if not run.data.train:
        for name in run.data.__class__.model_fields.keys() - _OF_MADE_PROMPTS:
            yield f"data.{name}", "there are no data. Add --data FILE."
    if run.data.train or not run.env.use:
        yield "eval.environment_split", "the tasks are the rows of --data. Leave that option out."
        yield (
            "eval.max_samples",
            "the tasks are the rows of --data. Set --data.max_samples in place of --eval.max_samples.",
        )
    if not any(run.eval.temperatures):
        for name in ("top_p", "top_k", "min_p"):
            yield f"rollout.{name}", "at temperature 0 nothing is drawn. Leave that option out."
    if not is_peft_folder(run.model.path):
        yield from adapter_without_effect(run.model)
    yield from images_without_effect(run.model)


def outputs(run: EvalOptions, labels: Labels) -> Iterator[str]:
    """Yield a message for each reason why the output folder cannot be written."""
    output = Path(run.output)
    label = f"{labels('output')} {run.output}"
    if problem := folder_problem(output):
        yield f"{label}: {problem}"
    for file, kind in (
        ("config.json", "a model"),
        ("metrics.jsonl", "a training run"),
        ("completions.jsonl", "the result of rlhf generate"),
    ):
        if os.path.isfile(output / file) and not os.path.isfile(output / EPISODES):
            yield f"{label}: there is {kind} in this folder; choose another one"


def models(run: EvalOptions) -> NamedPaths:
    """Yield the option that names the model, and the folder or name."""
    if run.model.path:
        yield "model.path", exported_by(run.model.path)
    if run.model.adapter is not None:
        yield ADAPTER, run.model.adapter


def data(run: EvalOptions) -> NamedPaths:
    """Yield the option that names data, and each file, folder or hub name."""
    for entry in run.data.train:
        is_named = "=" in entry and not os.path.exists(entry)
        yield "data.train", entry.partition("=")[2] if is_named else entry
