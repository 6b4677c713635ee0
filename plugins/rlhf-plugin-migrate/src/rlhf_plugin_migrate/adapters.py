"""Python files that call a reward function or an environment of another framework as that framework does.

A file is written beside the configuration, which names it. The user's module is imported when a reward is first
computed, so that a check of the configuration needs neither the module nor what the module imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

OPENRLHF_NAME = "openrlhf_reward"
"""Name of the function in the file for OpenRLHF."""

VERL_NAME = "verl_reward"
"""Name of the function in the file for verl."""

SKYRL_NAME = "SkyRLEnvironment"
"""Name of the class in the file for SkyRL."""

_TRL_FUNCTION = """

def {name}(prompts, responses, rows):
    return called({path!r}, prompts, responses, rows)
"""
_ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
_MANY = ("data_sources", "solution_strs", "ground_truths", "extra_infos")


def openrlhf_reward(path: str, label_key: str | None) -> str:
    """Return the text of a file whose ``openrlhf_reward`` calls ``reward_func`` of OpenRLHF's kind.

    Args:
        path: file with ``reward_func(queries, prompts, labels)``.
        label_key: column with the label; None: the label is empty.
    """
    return _text(
        "openrlhf", file=path, path=repr(path), label_key=repr(label_key), name=OPENRLHF_NAME
    )


def trl_rewards(paths: dict[str, str], prompt_key: str) -> str:
    """Return the text of a file with a function for each reward function of TRL's kind.

    Args:
        paths: dotted path of each user's function, by the name of the function in the file.
        prompt_key: column with the prompt.
    """
    functions = (_TRL_FUNCTION.format(name=name, path=path) for name, path in paths.items())
    return _text("trl", prompt_key=repr(prompt_key)) + "".join(functions)


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
    return _text(
        "verl",
        file=path,
        path=repr(path),
        function=repr(function),
        key=repr(key),
        kwargs=repr(dict(kwargs)),
        name=VERL_NAME,
        call=f"{call}, **KWARGS",
        result="result[0]" if takes_lists else "result",
    )


def skyrl_environment(env_class: str, max_turns: int, config: Mapping[str, object]) -> str:
    """Return the text of a file whose ``SkyRLEnvironment`` plays an environment of SkyRL-gym.

    Args:
        env_class: id of the environment in SkyRL-gym.
        max_turns: largest number of the policy's turns.
        config: options of the environment, as SkyRL's section ``environment.skyrl_gym`` has them.
    """
    return _text(
        "skyrl",
        env_class=repr(env_class),
        max_turns=str(max_turns),
        config=repr(dict(config)),
        name=SKYRL_NAME,
    )


def _text(framework: str, **values: str) -> str:
    """Return the file of a framework in ``adapter_files``, in which each ``$NAME`` has its value."""
    file = Path(__file__).with_name("adapter_files") / f"{framework}.py.txt"
    return Template(file.read_text(encoding="utf-8")).substitute(values)
