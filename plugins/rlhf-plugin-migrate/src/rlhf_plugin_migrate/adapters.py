"""Python files that call a reward function of another framework as that framework does.

A file is written beside the configuration, which names it. The user's module is imported when a reward is first
computed, so that a check of the configuration needs neither the module nor what the module imports.
"""

from __future__ import annotations

OPENRLHF_NAME = "openrlhf_reward"
"""Name of the function in the file for OpenRLHF."""

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
