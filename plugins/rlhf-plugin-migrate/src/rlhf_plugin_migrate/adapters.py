"""Python files that call a reward function of another framework as that framework does.

A file is written beside the configuration, which names it. The user's module is imported when a reward is first
computed, so that a check of the configuration needs neither the module nor what the module imports.
"""

from __future__ import annotations

from collections.abc import Mapping

OPENRLHF_NAME = "openrlhf_reward"
"""Name of the function in the file for OpenRLHF."""

VERL_NAME = "verl_reward"
"""Name of the function in the file for verl."""

_OPENRLHF = '''\
"""Reward of {path}, called for each sample as OpenRLHF calls it. Written by `rlhf migrate`; edit it at will."""

import functools
import importlib.util

REWARD_FILE = {path!r}
LABEL_KEY = {label_key!r}


@functools.cache
def reward_func():
    spec = importlib.util.spec_from_file_location("reward_func", REWARD_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reward_func


def {name}(prompt, response, row):
    """`response` has no special tokens; OpenRLHF's query has them."""
    label = "" if LABEL_KEY is None else row[LABEL_KEY]
    result = reward_func()([prompt + response], [prompt], [label])
    if not isinstance(result, dict):
        return number(result)
    logs = {{key: number(value) for key, value in (result.get("extra_logs") or {{}}).items()}}
    scores = result.get("scores")
    score = {{}} if scores is None else {{"score": number(scores)}}
    return {{**logs, **score, "reward": number(result["rewards"])}}


def number(value):
    """A number, or the only entry of a list, array or tensor."""
    if hasattr(value, "item"):
        return float(value.item())
    return float(value[0] if isinstance(value, (list, tuple)) else value)
'''

_TRL = '''\
"""Reward functions of TRL's kind, called with lists as TRL calls them. Written by `rlhf migrate`; edit it at will."""

import functools
import importlib
import os
import sys

PROMPT_KEY = {prompt_key!r}


@functools.cache
def imported(path):
    sys.path.insert(0, os.getcwd())
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def called(path, prompts, responses, rows):
    function = imported(path)
    chat = bool(rows) and isinstance(rows[0][PROMPT_KEY], list)
    completions = [[{{"role": "assistant", "content": text}}] if chat else text for text in responses]
    columns = {{key: [row[key] for row in rows] for key in rows[0] if key != PROMPT_KEY}}
    prompts = [row[PROMPT_KEY] for row in rows] if chat else list(prompts)
    results = function(prompts=prompts, completions=completions, **columns)
    # TRL leaves out a reward that is None, which adds nothing to the sum.
    return [0.0 if result is None else float(result) for result in results]
'''

_TRL_FUNCTION = """

def {name}(prompts, responses, rows):
    return called({path!r}, prompts, responses, rows)
"""

_VERL = '''\
"""Reward of {path}, called for each sample as verl calls it. Written by `rlhf migrate`; edit it at will."""

import functools
import importlib.util
import inspect
import numbers

REWARD_FILE = {path!r}
KWARGS = {kwargs!r}


@functools.cache
def function():
    spec = importlib.util.spec_from_file_location("compute_score", REWARD_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, {function!r})


async def {name}(response, row):
    extra = dict(row.get("extra_info") or {{}})
    given = (row.get({key!r}), response, row["reward_model"]["ground_truth"], extra)
    result = function()({call})
    if inspect.isawaitable(result):
        result = await result
    result = {result}
    if not isinstance(result, dict):
        return float(result)
    # What is no number, such as an answer that was found, has no mean.
    others = {{key: float(value) for key, value in result.items() if isinstance(value, numbers.Real)}}
    others.pop("score", None)
    return {{**others, "reward": float(result["score"])}}
'''
_ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
_MANY = ("data_sources", "solution_strs", "ground_truths", "extra_infos")


def openrlhf_reward(path: str, label_key: str | None) -> str:
    """Return the text of a file whose ``openrlhf_reward`` calls ``reward_func`` of OpenRLHF's kind.

    Args:
        path: file with ``reward_func(queries, prompts, labels)``.
        label_key: column with the label; None: the label is empty.
    """
    return _OPENRLHF.format(path=path, label_key=label_key, name=OPENRLHF_NAME)


def trl_rewards(paths: dict[str, str], prompt_key: str) -> str:
    """Return the text of a file with a function for each reward function of TRL's kind.

    Args:
        paths: dotted path of each user's function, by the name of the function in the file.
        prompt_key: column with the prompt.
    """
    functions = (_TRL_FUNCTION.format(name=name, path=path) for name, path in paths.items())
    return _TRL.format(prompt_key=prompt_key) + "".join(functions)


def verl_reward(
    path: str, function: str, key: str, kwargs: Mapping[str, object], *, takes_lists: bool
) -> str:
    """Return the text of a file whose ``verl_reward`` calls ``compute_score`` of verl's kind.

    Args:
        path: file with the function.
        function: its name.
        key: column with what the function gets as ``data_source``.
        kwargs: further arguments of each call.
        takes_lists: the function is called with lists, as verl's reward manager ``batch`` does.
    """
    names = _MANY if takes_lists else _ONE
    values = (f"[given[{index}]]" if takes_lists else f"given[{index}]" for index in range(4))
    call = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
    return _VERL.format(
        path=path,
        function=function,
        key=key,
        kwargs=dict(kwargs),
        name=VERL_NAME,
        call=f"{call}, **KWARGS",
        result="result[0]" if takes_lists else "result",
    )
