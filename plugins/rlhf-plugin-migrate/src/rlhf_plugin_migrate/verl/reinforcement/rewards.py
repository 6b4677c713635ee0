"""Rules of the reward: a function, a model, or verl's own choice by the column ``data_source``."""

from __future__ import annotations

from ...adapters import VERL_NAME, verl_reward
from ...table.kinds import Value
from ...table.outcome import Outcome
from ...table.source import SourceOptions

_PATH, _NAME = "reward.custom_reward_function.path", "reward.custom_reward_function.name"
_KWARGS = tuple(
    f"{beginning}custom_reward_function.reward_kwargs." for beginning in ("reward.", "")
)
_MANAGER, _SOURCE, _KEY = (
    "reward.reward_manager.name",
    "reward.reward_manager.source",
    "data.reward_fn_key",
)
_MODEL, _MODEL_PATH = "reward.reward_model.enable", "reward.reward_model.model_path"
_TOKENIZER = "reward_model.model.input_tokenizer"
_BUFFER = "reward.reward_kwargs.overlong_buffer_cfg"
_LIMIT = "reward.reward_kwargs.max_resp_len"
_LABEL = "reward_model.ground_truth"
_LISTS = ("batch",)
"""Reward managers that call a function with lists."""
_SINGLE = ("naive", "dapo", "prime", "gdpo", "limited", "rate_limited", "remote")


def set_reward(source: SourceOptions, out: Outcome, adapter: str) -> None:
    """Set the reward.

    Args:
        adapter: path of the file that calls the user's function, if there is one.
    """
    manager = source.text(_MANAGER)
    if source.text(_PATH):
        _set_function(source, out, adapter)
    elif source.flag(_MODEL):
        _set_model(source, out)
    else:
        out.set("reward.use", ["math"], _PATH, _NAME, _KEY, _MANAGER)
        out.set("reward.math.label_key", _LABEL, _PATH)
        out.differs(
            _KEY if source.given(_KEY) else _PATH,
            "verl chooses a function by data_source; math compares final answers, as of GSM8K, MATH, AIME and "
            "Geometry3K. For other rows (code, search) write a function",
        )
    if source.text(_PATH) or not source.flag(_MODEL):
        out.nothing((_MODEL_PATH, _TOKENIZER), "no model scores")
    if source.text(_PATH) and source.flag(_MODEL):
        out.missing(
            _MODEL,
            "the function does not get a server of the model: serve it (rlhf serve-rm) and ask it there",
        )
    elif not source.flag(_MODEL):
        out.nothing(_MODEL, "no model scores")
    out.nothing((_PATH, _NAME, _KEY), "rewards get the whole row")
    if source.text(_SOURCE) != "register" or manager not in (*_LISTS, *_SINGLE):
        out.missing(_MANAGER, f"the reward manager {manager} is not known: it is taken for naive")
    out.nothing(_MANAGER, "each sample is scored by itself")
    out.nothing(_SOURCE, "see reward_manager.name")
    _set_overlong(source, out)


def _set_function(source: SourceOptions, out: Outcome, adapter: str) -> None:
    kwargs: dict[str, Value] = {}
    for key in source.entries:
        beginning = next((one for one in _KWARGS if key.startswith(one)), "")
        if beginning and source.given(key):
            kwargs[key.removeprefix(beginning)] = source.value(key)
            out.nothing(key, f"it is in {adapter}")
    path, name = source.text(_PATH), source.text(_NAME)
    out.files[adapter] = verl_reward(
        path, name, source.text(_KEY), kwargs, takes_lists=source.text(_MANAGER) in _LISTS
    )
    out.set("reward.use", [f"{adapter}:{VERL_NAME}"], _PATH, _NAME, _KEY)
    out.differs(_PATH, f"{adapter} calls {name} of {path} as verl does")


def _set_model(source: SourceOptions, out: Outcome) -> None:
    out.set("reward.use", ["reward_model"], _MODEL)
    if source.text(_MODEL_PATH):
        out.set("reward.reward_model.path", source.text(_MODEL_PATH), _MODEL_PATH)
    else:
        out.missing(_MODEL_PATH, "the configuration needs reward.reward_model.path")
    if source.given(_TOKENIZER) and source.value(_TOKENIZER) in (None, "", "null"):
        out.set("reward.reward_model.input", "ids", _TOKENIZER)
    else:
        out.set(
            "reward.reward_model.input",
            "chat",
            _MODEL,
            _TOKENIZER,
            comment="in the model's own chat template",
        )


def _set_overlong(source: SourceOptions, out: Outcome) -> None:
    enable, length, factor = (f"{_BUFFER}.{name}" for name in ("enable", "len", "penalty_factor"))
    if not source.flag(enable) or source.text(_MANAGER) != "dapo":
        out.nothing(
            (enable, length, factor, _LIMIT),
            "there is no penalty for length, of which verl's manager dapo has one",
        )
        return
    out.set("reward.shapers", ["overlong"], enable)
    out.copy("reward.overlong.buffer", length)
    out.copy("reward.overlong.factor", factor)
    limit = source.value(_LIMIT) or source.value("data.max_response_length")
    out.set("reward.overlong.max_tokens", limit, _LIMIT)
