"""Rules of the correction between the sampler and the trainer, and of the filter of groups."""

from __future__ import annotations

from dataclasses import dataclass

from ...table.kinds import Value
from ...table.outcome import Outcome
from ...table.source import SourceOptions

_PREFIX = "algorithm.rollout_correction"
_IS, _IS_LIMIT = f"{_PREFIX}.rollout_is", f"{_PREFIX}.rollout_is_threshold"
_RS, _RS_LIMIT = f"{_PREFIX}.rollout_rs", f"{_PREFIX}.rollout_rs_threshold"
_RS_LOW, _BYPASS, _TYPE = f"{_RS_LIMIT}_lower", f"{_PREFIX}.bypass_mode", f"{_PREFIX}.loss_type"
_VETO = f"{_PREFIX}.rollout_token_veto_threshold"
_OLD_RS = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""Names of verl before 0.8 -> today's."""
_LEVELS = {"token": "token", "seq_sum": "sequence", "seq_mean": "geometric"}
_GATES = {"k1": "ratio", "k2": "k2", "k3": "k3"}
_FILTER = "algorithm.filter_groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    low: float | None
    high: float


def set_correction(source: SourceOptions, out: Outcome) -> None:
    """Set the correction: weights (``rollout_is``), dropped tokens or sequences (``rollout_rs``, once also
    ``rollout_token_veto_threshold``), or none."""
    weights, drops, veto = _named(source, _IS), _named(source, _RS), source.value(_VETO)
    if source.flag(_BYPASS):
        out.set("algo.loss.old_logprobs", "rollout", _BYPASS)
        if source.text(_TYPE) != "ppo_clip":
            out.missing(
                _TYPE, "the loss stays that of loss_mode, with the sampler's log-probs in its ratio"
            )
        else:
            out.nothing(_TYPE, "the clipped ratio is that to the sampler")
        if weights:
            why = "verl applies no weights with bypass_mode: the ratio is that to the sampler"
            out.nothing(_IS, why)
        if drops:
            why = "nothing is dropped with bypass_mode: a correction compares the trainer's own log-probs"
            out.missing(_RS, why)
        if veto is not None:
            out.missing(_VETO, "nothing is dropped with bypass_mode")
        weights, drops, veto = "", "", None
    else:
        out.nothing(_BYPASS, "the ratio is that to the trainer's own log-probs")
        out.nothing(_TYPE, "verl reads it only with bypass_mode")
    for key, text in (
        (_IS, weights),
        (_IS_LIMIT, weights),
        (_RS, drops),
        (_RS_LIMIT, drops),
        (_RS_LOW, drops),
    ):
        if not text:
            out.nothing(key, "there is no such correction")
    if veto is None and not source.flag(_BYPASS):
        out.nothing(_VETO, "no token drops its sequence")
    if drops:
        _set_drops(source, out, drops, weights)
    elif weights:
        _set_weights(source, out, weights, vetoed=veto is not None)
    elif veto is not None:
        for option, value in (("mode", "mask"), ("high", 1e6), ("weight", "off")):
            out.set(f"algo.correction.importance.{option}", value, _VETO)
    if veto is not None:
        out.set("algo.correction.kind", "importance", _VETO)
        out.set("algo.correction.importance.veto", float(str(veto)), _VETO)


def _named(source: SourceOptions, key: str) -> str:
    text = source.text(key)
    return "" if text.lower() in ("none", "null", "false") else text


def _set_weights(source: SourceOptions, out: Outcome, level: str, *, vetoed: bool = False) -> None:
    bounds = _bounds(source.value(_IS_LIMIT))
    if level == "token" and bounds.low is None and bounds.high >= 1 and not vetoed:
        out.set("algo.correction.kind", "tis", _IS)
        out.set("algo.correction.tis.high", bounds.high, _IS_LIMIT)
        return
    out.set("algo.correction.kind", "importance", _IS)
    out.set("algo.correction.importance.level", level, _IS)
    mode = "truncate" if bounds.low is None else "mask"
    out.set("algo.correction.importance.mode", mode, _IS, _IS_LIMIT)
    if mode == "mask":
        out.set("algo.correction.importance.weight", level, _IS)
    _set_bounds(out, bounds, _IS_LIMIT)


def _set_drops(source: SourceOptions, out: Outcome, drops: str, weights: str) -> None:
    names, limits = (
        [part.strip() for part in text.split(",")] for text in (drops, source.text(_RS_LIMIT))
    )
    name = _OLD_RS.get(names[0], names[0])
    level, _, gate = name.rpartition("_")
    if level not in _LEVELS or gate not in _GATES:
        out.missing(
            _RS, f"{names[0]}: what is dropped is told by a token, a sum or a mean over a sequence"
        )
        out.nothing((_RS_LIMIT, _RS_LOW), "see rollout_rs")
        if weights:
            _set_weights(source, out, weights)
        return
    out.set("algo.correction.kind", "importance", _RS)
    for option, value in (("level", _LEVELS[level]), ("mode", "mask"), ("gate", _GATES[gate])):
        out.set(f"algo.correction.importance.{option}", value, _RS)
    bounds = _bounds(limits[0] or 2.0)
    if gate == "k1" and bounds.low is None:
        lowest = source.value(_RS_LOW)
        low = float(str(lowest)) if lowest is not None else 1.0 / bounds.high
        bounds = _Bounds(low=low, high=bounds.high)
    _set_bounds(out, bounds, _RS_LIMIT, _RS_LOW)
    out.nothing(_RS_LOW, "the lower bound is 1 / the upper one")
    out.set("algo.correction.importance.weight", weights or "off", _RS, *([_IS] if weights else []))
    if weights:
        limit = _bounds(source.value(_IS_LIMIT)).high
        out.set("algo.correction.importance.max_weight", limit, _IS_LIMIT)
    if len(names) > 1:
        out.missing(_RS, f"one rule drops what it drops; {', '.join(names[1:])} are left out")


def _set_bounds(out: Outcome, bounds: _Bounds, *keys: str) -> None:
    low: Value = "none" if bounds.low is None else round(bounds.low, 6)
    out.set("algo.correction.importance.low", low, *keys)
    out.set("algo.correction.importance.high", bounds.high, *keys)


def _bounds(value: Value) -> _Bounds:
    """Return the bounds of ``2.0`` or ``0.5_2.0``."""
    low, _, high = str(value).rpartition("_")
    try:
        return _Bounds(low=float(low) if low else None, high=float(high))
    except ValueError:
        return _Bounds(low=None, high=2.0)


def set_filter(source: SourceOptions, out: Outcome) -> None:
    """Set the filter of groups: verl drops those whose samples all have the same metric, and draws until it is full."""
    enable, metric, batches = (
        f"{_FILTER}.{name}" for name in ("enable", "metric", "max_num_gen_batches")
    )
    if not source.flag(enable):
        out.nothing((metric, batches), "the filter is off")
        out.nothing(enable, "off, as here")
        return
    out.set("rollout.filters", ["zero_variance"], enable, metric)
    limit = source.whole(batches)
    refills = limit - 1 if limit > 0 else 100
    comment = (
        "of a first batch and so many more" if limit > 0 else "verl draws until the batch is full"
    )
    out.set("rollout.max_refills", max(refills, 0), batches, comment=comment)
    if source.text(metric) not in ("", "None", "seq_reward", "seq_final_reward"):
        out.differs(
            metric, "groups are told by the whole reward after the shapers, not by this metric"
        )
