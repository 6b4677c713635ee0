"""Facts of a chat template, found by conversations that try it, and an example conversation in its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

from .control_words import template_text
from .facts import Shown, TemplateFacts
from .parsing.families import ThoughtTags, calls_of, thoughts_of
from .renderer import TokenizerRenderer

Tools = Sequence[Mapping[str, Any]]

USER: Message = {"role": "user", "content": "What is 12 + 30?"}
AGAIN: Message = {"role": "user", "content": "Are you sure?"}
SYSTEM: Message = {"role": "system", "content": "Answer in one word."}
ANSWER: Message = {"role": "assistant", "content": "It is 42."}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00000",
            "type": "function",
            "function": {"name": "add", "arguments": {"a": 12, "exact": False, "note": "é"}},
        }
    ],
}
RESULT: Message = {"role": "tool", "content": "4242", "name": "add", "tool_call_id": "call00000"}
TOOLS: Tools = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
            },
        },
    },
)
_THOUGHT = "Zx7Qv8"


class Prefix(NamedTuple):
    """Result of a conversation that was continued and rendered again."""

    forked: bool
    reason: str
    same_blanks: bool
    same_tokens: bool


def facts_of(
    renderer: TokenizerRenderer, stops: Collection[int], tools: Tools = TOOLS
) -> TemplateFacts:
    """Return the facts about a tokenizer's chat template.

    Args:
        stops: tokens that end a generation.
        tools: tools with which the template is tried.

    Raises:
        DataError: there is no chat template, or it refuses a question of a user.
    """
    renderer.render_text([USER])
    tokenizer, words, template = (
        renderer.tokenizer,
        renderer.texts.words,
        template_text(renderer.tokenizer),
    )
    thoughts, form = thoughts_of(words.ids, template), calls_of(words.ids, template)
    prefix = continued(renderer, [USER, ANSWER], [AGAIN])
    end = _end_of_turn(renderer)
    calling = renderer.end_of_calls if end else []
    starts = renderer.texts.prefix
    shown_tools = _shows(renderer, [USER], str(_name(tools)), tools)
    return TemplateFacts(
        prefix_preserving=not prefix.forked,
        prefix_reason=prefix.reason,
        same_blanks=prefix.same_blanks,
        same_tokens=prefix.same_tokens,
        answers=_answers(renderer),
        thoughts=None if thoughts is None else _thoughts(renderer, thoughts, [AGAIN]),
        thoughts_in_tool_cycles=None
        if thoughts is None or form is None
        else _thoughts(renderer, thoughts, [RESULT], CALL["tool_calls"]),
        opens_thought=thoughts is not None and _opens(renderer.generation_prompt, thoughts),
        adds_thought=thoughts is not None
        and thoughts.end
        in _text(renderer, [USER, ANSWER], reply=False).removeprefix(_text(renderer, [USER])),
        system=_shows(renderer, [SYSTEM, USER], SYSTEM["content"]),
        default_system=_default_system(renderer),
        tools=shown_tools,
        tools_move=shown_tools is Shown.KEPT and _tools_move(renderer, tools),
        tool_results=_shows(renderer, [USER, CALL, RESULT], RESULT["content"], tools),
        call_form=None if form is None else form.name,
        calls=_calls(renderer, tools),
        generation_prompt=renderer.generation_prompt,
        end_of_turn="" if not end else renderer.decode(end, skip_special_tokens=False),
        end_begins_next=bool(end) and not renderer.end_of_turn,
        end_of_calls="" if not calling else renderer.decode(calling, skip_special_tokens=False),
        end_is_stop=bool(end) and {end[-1], *calling} <= set(stops),
        stops=tuple(tokenizer.convert_ids_to_tokens(sorted(stops))),
        starts=tuple(tokenizer.convert_ids_to_tokens(starts)),
        starts_twice=bool(starts) and renderer.render([USER])[: len(starts)] == starts,
        depends_on_date="strftime_now" in template,
        control_words=tuple(words.ids),
        is_fast=bool(tokenizer.is_fast),
    )


def continued(
    renderer: TokenizerRenderer,
    conversation: Sequence[Message],
    messages: Sequence[Message],
    tools: Tools = (),
) -> Prefix:
    """Return whether a continued conversation forks.

    Args:
        conversation: messages through an answer that is sampled as the template would write it.
    """
    try:
        ids = sampled_conversation(renderer, conversation, tools)
        made = renderer.extend(
            conversation, ids, messages, ended=True, tools=tools, as_template=True
        )
        again = renderer.render([*conversation, *messages], tools)
    except DataError as error:
        return Prefix(True, str(error), same_blanks=False, same_tokens=False)
    kept, whole = renderer.decode_batch([made.token_ids, again], skip_special_tokens=False)
    return Prefix(made.forked, made.reason, kept == whole, list(made.token_ids) == again)


def sampled_conversation(
    renderer: TokenizerRenderer, conversation: Sequence[Message], tools: Tools = ()
) -> list[int]:
    """Return the tokens of a prompt and of its answer, sampled through the token that ends the turn."""
    prompt = renderer.render(conversation[:-1], tools)
    content = str(conversation[-1]["content"])
    return [*prompt, *_answer_tokens(renderer, conversation, content), *_end_of_turn(renderer)]


def _answer_tokens(
    renderer: TokenizerRenderer, conversation: Sequence[Message], content: str
) -> list[int]:
    """Return the tokens of an answer in its place, where a tokenizer puts no space before it."""
    chat = renderer.chat_text(conversation, reply=False)
    start = chat.text.rfind(content)
    if start < 0 or not renderer.tokenizer.is_fast:
        return renderer.texts.encode([renderer.answer_text(content)])[0]
    (located,) = renderer.texts.locate([chat])
    pairs = zip(located.token_ids, located.spans, strict=True)
    end = start + len(content)
    return [token for token, (first, last) in pairs if last > start and first < end]


def _end_of_turn(renderer: TokenizerRenderer) -> list[int]:
    try:
        return renderer.closing
    except DataError:
        return []


def _text(
    renderer: TokenizerRenderer,
    messages: Sequence[Message],
    tools: Tools = (),
    *,
    reply: bool = True,
) -> str:
    """Return a conversation's text; empty where the template refuses it."""
    try:
        return renderer.render_text(messages, reply=reply, tools=tools)
    except DataError:
        return ""


def _shows(
    renderer: TokenizerRenderer, messages: Sequence[Message], part: str, tools: Tools = ()
) -> Shown:
    text = _text(renderer, messages, tools)
    if not text:
        return Shown.REFUSED
    return Shown.KEPT if part in text else Shown.HIDDEN


def _answers(renderer: TokenizerRenderer) -> Shown:
    word = "Zx7Qv9 it"
    padded = f"  {word}\n\n"
    text = _text(renderer, [USER, {**ANSWER, "content": padded}, AGAIN])
    for part, shown in ((padded, Shown.KEPT), (word, Shown.TRIMMED), (word[:6], Shown.CHANGED)):
        if part in text:
            return shown
    return Shown.HIDDEN


def _thoughts(
    renderer: TokenizerRenderer, tags: ThoughtTags, following: Sequence[Message], calls: Any = None
) -> Shown:
    """Return what becomes of a thought when messages follow; in its own field where contents do not show it at all."""
    extra = {} if calls is None else {"tool_calls": calls}
    written = {**ANSWER, **extra, "content": f"{tags.begin}\n{_THOUGHT}\n{tags.end}\n\nIt is 42."}
    field = {**ANSWER, **extra, "reasoning_content": _THOUGHT}
    texts = [
        [_text(renderer, [USER, answer, *more], reply=bool(more)) for answer in (written, field)]
        for more in ((), following)
    ]
    if any(_THOUGHT in text for text in texts[1]):
        return Shown.KEPT
    return Shown.DROPPED if any(_THOUGHT in text for text in texts[0]) or texts[1] else Shown.HIDDEN


def _opens(prompt: str, tags: ThoughtTags) -> bool:
    return prompt.rfind(tags.begin) > prompt.rfind(tags.end)


def _default_system(renderer: TokenizerRenderer) -> str:
    given, without = _text(renderer, [SYSTEM, USER]), _text(renderer, [USER])
    head, content, tail = given.partition(SYSTEM["content"])
    if not content or not head or not without.startswith(head) or tail == without[len(head) :]:
        return ""
    rest = without[len(head) :]
    return rest[: -len(tail)].strip() if rest.endswith(tail) else ""


def _tools_move(renderer: TokenizerRenderer, tools: Tools) -> bool:
    first = _text(renderer, [USER], tools, reply=False)
    later = _text(renderer, [USER, ANSWER, AGAIN], tools)
    return bool(later) and not later.startswith(first)


def _calls(renderer: TokenizerRenderer, tools: Tools) -> Shown:
    text = _text(renderer, [USER, CALL, RESULT], tools)
    if not text:
        return Shown.REFUSED
    if "add" not in text.removeprefix(_text(renderer, [USER], tools, reply=False)):
        return Shown.HIDDEN
    return Shown.KEPT if "false" in text and "é" in text else Shown.CHANGED


def _name(tools: Tools) -> object:
    return tools[0].get("function", tools[0]).get("name") if tools else None


@dataclass(frozen=True, slots=True)
class ExamplePart:
    """Tokens of one part of a conversation."""

    name: str
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]


def example_parts(renderer: TokenizerRenderer, tools: Tools = ()) -> list[ExamplePart]:
    """Return a prompt, the policy's answer, and what comes before its next turn.

    Raises:
        DataError: the template refuses a question and an answer.
    """
    prompt = renderer.render([USER], tools)
    ids = sampled_conversation(renderer, [USER, ANSWER], tools)
    following = renderer.extend([USER, ANSWER], ids, [AGAIN], ended=True, tools=tools).token_ids
    parts = {"prompt": prompt, "answer": ids[len(prompt) :], "next prompt": following[len(ids) :]}
    return [
        ExamplePart(
            name,
            tuple(part),
            tuple(renderer.decode_batch([[token] for token in part], skip_special_tokens=False)),
        )
        for name, part in parts.items()
    ]
