"""Fields that a client sends and a run decides: how tokens are drawn, names of speakers.

The trainer computes log-probs at ``rollout.temperature`` and without penalties. An answer that was drawn in another way
would be trained as if it had been drawn so. A field that asks for what the run does anyway is accepted; any other is
refused, or with ``overrides = ignore`` left aside and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core.contracts import SamplingParams

from .answer_form import forced_tool, format_of, has_json_form, strict_names
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
    "guided_grammar": (None,),
    "structured_outputs": (None,),
    "min_tokens": (0, None),
    "ignore_eos": (False, None),
    "stop_token_ids": ([], None),
    "allowed_token_ids": (None,),
}
"""Field -> values with which it changes nothing."""
_UNFORCED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "parallel_tool_calls": ((True, None), "the policy calls as many tools as it likes"),
    "max_tool_calls": ((None,), "the policy calls as many tools as it likes"),
    "modalities": ((["text"], None), "answers are text"),
    "audio": ((None,), "answers are text"),
    "verbosity": (("medium", None), "nothing tells the policy"),
    "web_search_options": ((None,), "nothing here searches"),
    "thinking": (
        (None,),
        "the policy thinks as it does; a template's variable goes into chat_template_kwargs",
    ),
    "truncation": (("disabled", None), "a conversation that is too long ends the episode"),
    "context_management": ((None, []), "the conversation is read as it is sent"),
    "skip_special_tokens": ((True, None), "texts have no special tokens"),
    "spaces_between_special_tokens": ((True, None), "texts have no special tokens"),
    "include_stop_str_in_output": ((False, None), "the stop string is cut off"),
    "include_reasoning": ((True, None), "thoughts are in the reply"),
    "add_generation_prompt": ((True, None), "the policy always writes the next turn"),
    "continue_final_message": ((False, None), "begun answers are not gone on with"),
}
"""Field -> values with which it changes nothing, and what happens instead of what another one asks for."""
DECIDED = frozenset(
    {"temperature", "top_p", "min_p", "top_k", "response_format", *_NEUTRAL, *_UNFORCED}
)
"""Fields that the run decides; those of one route, such as ``text``, are its own."""


def is_greedy(name: str, value: object) -> bool:
    """Return whether a field asks for the most probable tokens."""
    return name == "temperature" and type(value) in (int, float) and value == 0


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
        if body.get(name) is not None and body[name] != value and not is_greedy(name, body[name])
    ]
    if body.get("top_k") not in (None, sampling.top_k, *((-1,) if sampling.top_k == 0 else ())):
        found.append(f"top_k = {body['top_k']!r} (the run has {sampling.top_k})")
    found += [
        f"{name} = {str(body[name])[:60]} (the run has none)"
        for name, neutral in _NEUTRAL.items()
        if name in body and body[name] not in neutral
    ]
    one_call = forced_tool(body.get("tool_choice")) is not None
    found += [
        f"{name} = {str(body[name])[:60]} ({instead})"
        for name, (neutral, instead) in _UNFORCED.items()
        if name in body
        and body[name] not in neutral
        and not (name == "parallel_tool_calls" and (one_call or strict_names(body)))
    ]
    found += _forced(body)
    found += _unshown(body)
    return found


def _unshown(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields of messages that no template shows.

    The name of a tool's result is read: it is that of the function. The name of an answer is the client's own label of
    what the policy wrote, and says nothing to read.
    """
    for index, message in enumerate(_objects(body.get("messages"))):
        if message.get("role") not in ("tool", "assistant") and message.get("name") is not None:
            name = str(message["name"])[:60]
            yield f"messages[{index}].name = {name} (the policy reads roles and contents alone)"


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of an array; what is none is named where the array is read."""
    for each in value if isinstance(value, list) else ():
        yield each if isinstance(each, dict) else {}


def _forced(body: Mapping[str, Any]) -> list[str]:
    """Return what a client demands of an answer's form that is neither JSON nor a call."""
    found = []
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if forced_tool(choice) is not None:
        pass
    elif kind not in (None, "auto", "none"):
        found.append(f"tool_choice = {str(choice)[:60]} (the policy chooses)")
    elif isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        found.append(
            "tool_choice.disable_parallel_tool_use = true (the policy calls as many tools as it likes)"
        )
    form, _ = format_of(body)
    text = body.get("text")
    verbosity = text.get("verbosity") if isinstance(text, dict) else None
    if verbosity not in ("medium", None):
        found.append(f"text.verbosity = {verbosity!r} (nothing tells the policy)")
    is_text = isinstance(form, dict) and form.get("type") == "text"
    if form is not None and not is_text and not has_json_form(body):
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
