"""Rules of TRL's rewards: ready functions have counterparts, functions of the user are called by a file."""

from __future__ import annotations

from ..adapters import trl_rewards
from ..table.kinds import Value
from ..table.outcome import Outcome
from ..table.source import SourceOptions

_PROMPT_KEY = "prompt"
_THINK = r"(?s)^<think>(?!.*<think>)(.*?)</think>.*$"


def set_rewards(source: SourceOptions, out: Outcome, adapter: str) -> None:
    """Set the rewards with their weights, the model first, as TRL adds them.

    Args:
        adapter: path of the file that calls the user's functions, if it is needed.
    """
    names = source.texts("reward_funcs")
    model = source.text("reward_model_name_or_path")
    weights = _weights(source.value("reward_weights"))
    used: list[str] = []
    own: dict[str, str] = {}
    for index, name in enumerate(([model] if model else []) + names):
        weight = weights[index] if index < len(weights) else 1.0
        is_model = bool(model) and index == 0
        section = "reward_model" if is_model else _set_function(name, weight, out, own)
        if is_model:
            out.set("reward.reward_model.path", model, "reward_model_name_or_path")
        if not section:
            continue
        used.append(f"{adapter}:{section}" if section in own else section)
        if weight != 1.0:
            out.set(f"reward.{section}.weight", weight, "reward_weights")
    if own:
        out.files[adapter] = trl_rewards(own, _PROMPT_KEY)
        out.differs(
            "reward_funcs",
            f"{adapter} calls {', '.join(own.values())} as TRL does, without its trainer state",
        )
    if used:
        out.set("reward.use", list(used), "reward_funcs", "reward_model_name_or_path")
    else:
        out.warnings.append(
            "no reward is given that has a counterpart: the configuration needs reward.use"
        )
    out.nothing("reward_weights", "a weight of 1 is the default")
    out.nothing("reward_funcs", "no function is named")


def _weights(value: Value) -> list[float]:
    return [float(weight) for weight in value] if isinstance(value, list) else []


def _set_function(name: str, weight: float, out: Outcome, own: dict[str, str]) -> str:
    """Set one reward function, and return the name of its section; empty for one that is no reward here."""
    if name == "accuracy_reward":
        out.set("reward.math.label_key", "solution", "reward_funcs")
        out.differs(
            "reward_funcs",
            "math gives 0 where the solution cannot be parsed; TRL leaves the sample out",
        )
        return "math"
    if name == "think_format_reward":
        out.set("reward.regex.pattern", _THINK, "reward_funcs")
        out.set("reward.regex.mode", "full", "reward_funcs")
        return "regex"
    if name == "get_soft_overlong_punishment":
        out.set("reward.shapers", ["overlong"], "reward_funcs")
        out.set("reward.overlong.max_tokens", 1280, "reward_funcs")
        out.set("reward.overlong.buffer", 256, "reward_funcs")
        out.set("reward.overlong.factor", weight, "reward_funcs")
        return ""
    if "." in name:
        function = name.rpartition(".")[2]
        own[function] = name
        return function
    out.missing(
        "reward_funcs", f"{name} has no counterpart; write it as a function: docs/rewards.md"
    )
    return ""
