"""Fields that a client sends and a run decides: how tokens are drawn, forced tools and formats.

The trainer computes log-probs at ``rollout.temperature`` and without penalties. An answer that was drawn in another way
would be trained as if it had been drawn so. A field that asks for what the run does anyway is accepted; any other is
refused, or with ``overrides = ignore`` left aside and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.contracts import SamplingParams

from .problems import RequestProblem

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "repetition_penalty": (1, None),
    "length_penalty": (1, None),
    "logit_bias": ({}, None),
    "best_of": (1, None),
    "use_beam_search": (False, None),
    "bad_words": ([], None),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "structured_outputs": (None,),
}
"""Field -> values with which it changes nothing."""


def overridden(body: Mapping[str, Any], sampling: SamplingParams) -> list[str]:
    """Return the fields that ask for something else than the run does, each with what the run does."""
    own = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }
    found = [
        f"{name} = {body[name]!r} (the run has {value:g})"
        for name, value in own.items()
        if body.get(name) is not None and body[name] != value
    ]
    if body.get("top_k") not in (None, sampling.top_k, *((-1,) if sampling.top_k == 0 else ())):
        found.append(f"top_k = {body['top_k']!r} (the run has {sampling.top_k})")
    found += [
        f"{name} = {str(body[name])[:60]} (the run has none)"
        for name, neutral in _NEUTRAL.items()
        if name in body and body[name] not in neutral
    ]
    found += _forced(body)
    return found


def _forced(body: Mapping[str, Any]) -> list[str]:
    """Return what a client demands of an answer's form, which no engine here enforces."""
    found = []
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (None, "auto", "none"):
        found.append(f"tool_choice = {str(choice)[:60]} (the policy chooses)")
    form = body.get("response_format")
    if form is None and isinstance(body.get("text"), dict):
        form = body["text"].get("format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        found.append(f"a response format {str(form)[:60]} (answers are text)")
    return found


def check_overrides(body: Mapping[str, Any], sampling: SamplingParams, *, ignore: bool) -> int:
    """Return how many fields are left aside.

    Raises:
        RequestProblem: there are some, and ``ignore`` is off.
    """
    found = overridden(body, sampling)
    if found and not ignore:
        raise RequestProblem(
            f"the run decides how tokens are drawn, since it trains on them: {'; '.join(found)}. Leave the fields out, "
            "or run with --rollout.endpoint.overrides ignore",
            code="not_overridable",
            parameter=found[0].partition(" ")[0],
        )
    return len(found)
