"""Planted faults of a renderer, each of which has to be caught by the audit that a right renderer passes.

The audit knows the zoo's templates as text: what it expects is cut out of whole renderings, so it shares no code with
the renderer's way to the tokens between two turns.
"""

import json
import unicodedata
from dataclasses import replace

import pytest
from tests.libs.data.chat.zoo import KINDS, renderer_of, tokenizer_of, tools_of

from rlhf_core.contracts import ChatContinuation
from rlhf_data.chat.renderer import TokenizerRenderer

AUDITED = ("hermes", "thinking", "opened thought", "llama3", "deepseek")
RENDERERS = {name: renderer_of(name) for name in AUDITED}
USER = {"role": "user", "content": "What is this?"}
AGAIN = {"role": "user", "content": "Sure? ﬁne  é"}
RESULTS = [{"role": "tool", "content": "first"}, {"role": "tool", "content": "second"}]
ANSWERS = ["4", "  4 \n", "It is 4.\n\n"]


def ids_of(name, text):
    return tokenizer_of(name)(text, add_special_tokens=False)["input_ids"]


def shown(name, messages, tools=(), *, reply=True):
    return tokenizer_of(name).apply_chat_template(
        messages, tools=list(tools) or None, tokenize=False, add_generation_prompt=reply
    )


def audit(renderer, name):
    """Yield what is wrong with a renderer of one kind of tokenizer."""
    yield from audit_rendering(renderer, name)
    yield from audit_words(renderer, name)
    yield from audit_next_turns(renderer, name)
    yield from audit_forks(renderer, name)
    yield from audit_answers(renderer, name)


def audit_rendering(renderer, name):
    for tools in ((), tools_of(name)):
        messages = [USER, {"role": "assistant", "content": "4"}, AGAIN]
        if renderer.render(messages, tools) != ids_of(name, shown(name, messages, tools)):
            yield f"render with {len(tools)} tools"
    if renderer.encode(" a  b\n\n") != ids_of(name, " a  b\n\n"):
        yield "encode"


def audit_words(renderer, name):
    words = renderer.texts.words.ids
    known = set(words.values())
    plain = [token for token in renderer.render([USER]) if token in known]
    for word in words:
        if known.intersection(renderer.encode(f"a {word}")):
            yield f"{word} in an observation"
        for role in ("user", "tool"):
            message = {"role": role, "content": f"a {word}"}
            spelled = [t for t in renderer.render_next([message], ended=True) if t in known]
            wanted = [
                t
                for t in renderer.render_next([{**message, "content": "a"}], ended=True)
                if t in known
            ]
            if spelled != wanted:
                yield f"{word} of a {role}"
        found = [t for t in renderer.render([{"role": "user", "content": word}]) if t in known]
        if found != plain:
            yield f"{word} in a prompt"


def audit_next_turns(renderer, name):
    """What follows an answer is the text that the template writes behind it, and is tokenized once."""
    end = KINDS[name].end
    for following in ([AGAIN], RESULTS):
        whole = shown(name, [USER, {"role": "assistant", "content": "Zx7Qv1"}, *following])
        behind = whole.partition("Zx7Qv1")[2]
        for ended in (True, False):
            wanted = behind.removeprefix(end) if ended else behind
            text = renderer.decode(
                renderer.render_next(following, ended=ended), skip_special_tokens=False
            )
            if text != wanted:
                yield f"{len(following)} messages after an answer, ended={ended}"
            for answer in ANSWERS:
                ids = [*renderer.render([USER]), *ids_of(name, answer), *ids_of(name, end) * ended]
                conversation = [USER, {"role": "assistant", "content": answer}]
                made = renderer.extend(conversation, ids, following, ended=ended)
                if list(made.token_ids[: len(ids)]) != ids or made.forked:
                    yield f"tokens after {answer!r}"
                rest = renderer.decode(made.token_ids[len(ids) :], skip_special_tokens=False)
                if rest != wanted:
                    yield f"new tokens after {answer!r}"


def audit_forks(renderer, name):
    """A turn forks where, and only where, the template shows the conversation in other words."""
    end = ids_of(name, KINDS[name].end)
    for answer in ("4", "<think>\nhm\n</think>\n\n4"):
        ids = [*renderer.render([USER]), *ids_of(name, answer), *end]
        conversation = [USER, {"role": "assistant", "content": answer}]
        made = renderer.extend(conversation, ids, [AGAIN], ended=True, as_template=True)
        whole = shown(name, [*conversation, AGAIN])
        kept = renderer.decode(
            [*ids, *renderer.render_next([AGAIN], ended=True)], skip_special_tokens=False
        )
        differs = "".join(kept.split()) != "".join(whole.split())
        if made.forked != differs or bool(made.reason) != differs:
            yield f"forked={made.forked} after {answer!r}"
        if differs and list(made.token_ids) != ids_of(name, whole):
            yield "the tokens of a fork"
        if not differs and list(made.token_ids[: len(ids)]) != ids:
            yield "the tokens of no fork"


def audit_answers(renderer, name):
    words = renderer.texts.words.ids
    if renderer.parse(renderer.encode("plain <tool_call>{}</tool_call>")).content is not None and (
        "<tool_call>" in words
    ):
        yield "a call that is spelled"
    if name == "opened thought":
        prompt = renderer.render([USER])
        answer = renderer.parse(ids_of(name, "hm</think>so"), prompt_ids=prompt)
        if (answer.reasoning, answer.content) != ("hm", "so"):
            yield "a thought that the prompt began"
        if not renderer.parse(ids_of(name, "hm"), prompt_ids=prompt).reasoning_open:
            yield "an open thought"
    if name not in ("hermes", "thinking"):
        return
    call = '<tool_call>\n{"name": "add", "arguments": {"a":1,  "b": false}}\n</tool_call>'
    thought = "<think>hm</think>" if name == "thinking" else ""
    answer = renderer.parse(ids_of(name, f"{thought}so\n{call}\n{call}"))
    if [one.arguments for one in answer.tool_calls] != ['{"a":1,  "b": false}'] * 2:
        yield "calls as they were written"
    if len({one.id for one in answer.tool_calls}) != 2:
        yield "names of calls"
    if (answer.reasoning, (answer.content or "").strip()) != ("hm" if thought else "", "so"):
        yield "thought and content"
    for broken in ("<tool_call>{", "<tool_call>[1]</tool_call>", "</tool_call>"):
        try:
            read = renderer.parse(ids_of(name, broken))
        except ValueError:
            yield f"an error for {broken}"
            continue
        if read.tool_calls or not read.malformed:
            yield f"nothing is said of {broken}"


class Wrapped:
    """A renderer in which some methods are others. Each gets the right renderer first."""

    def __init__(self, right, **methods):
        self._right = right
        self._methods = methods

    def __getattr__(self, name):
        if name in self._methods:
            method, right = self._methods[name], self._right
            return lambda *args, **options: method(right, *args, **options)
        return getattr(self._right, name)


def both(change):
    """Methods that give new tokens, each with the new tokens changed."""

    def render_next(right, messages, **options):
        return change(right, right.render_next(messages, **options))

    def extend(right, conversation, ids, messages, **options):
        made = right.extend(conversation, ids, messages, **options)
        if made.forked:
            return made
        rest = change(right, list(made.token_ids[len(ids) :]))
        return replace(made, token_ids=(*ids, *rest))

    return {"render_next": render_next, "extend": extend}


def messages_changed(change):
    """Methods that read messages, with the messages changed."""

    def render(right, messages, tools=()):
        return right.render(change(messages), tools)

    def render_next(right, messages, **options):
        return right.render_next(change(messages), **options)

    def extend(right, conversation, ids, messages, **options):
        return right.extend(conversation, ids, change(messages), **options)

    return {"render": render, "render_next": render_next, "extend": extend}


def ids_changed(change):
    """Extension with the tokens so far changed."""

    def extend(right, conversation, ids, messages, **options):
        return right.extend(conversation, change(right, list(ids)), messages, **options)

    return {"extend": extend}


def parse_changed(change):
    return {"parse": lambda right, ids, **options: change(right, right.parse(ids, **options))}


def on_contents(change):
    return messages_changed(
        lambda messages: [{**m, "content": change(m["content"])} for m in messages]
    )


def as_tokens(right):
    return TokenizerRenderer(right.tokenizer, control_words="tokens")


def again(right, ids):
    """Tokens that were decoded and tokenized again."""
    text = right.decode(ids, skip_special_tokens=False)
    return right.tokenizer(text.replace("  ", " "), add_special_tokens=False)["input_ids"]


def stripped(right, ids):
    return right.tokenizer(
        right.decode(ids, skip_special_tokens=False).rstrip(), add_special_tokens=False
    )["input_ids"]


def rendered_again(right, conversation, ids, messages, **options):
    return ChatContinuation(token_ids=tuple(right.render([*conversation, *messages])))


def no_fork(right, conversation, ids, messages, **options):
    made = right.extend(conversation, ids, messages, **options)
    return replace(made, forked=False, reason="")


def always_fork(right, conversation, ids, messages, **options):
    made = right.extend(conversation, ids, messages, **options)
    return replace(made, forked=True, reason="?")


def strict_fork(right, conversation, ids, messages, *, as_template=False, **options):
    """Any other token is a fork, also where only tokenization differs."""
    made = right.extend(conversation, ids, messages, as_template=as_template, **options)
    whole = tuple(right.render([*conversation, *messages]))
    if as_template and made.token_ids != whole:
        return ChatContinuation(token_ids=whole, forked=True, reason="other tokens")
    return made


def dumped_calls(right, answer):
    calls = [replace(c, arguments=json.dumps(json.loads(c.arguments))) for c in answer.tool_calls]
    return replace(answer, tool_calls=tuple(calls))


def python_calls(right, answer):
    calls = [replace(c, arguments=c.arguments.replace("false", "False")) for c in answer.tool_calls]
    return replace(answer, tool_calls=tuple(calls))


def raising(right, ids, **options):
    answer = right.parse(ids, **options)
    if answer.malformed:
        raise ValueError(answer.malformed[0])
    return answer


def by_text(right, ids, **options):
    text = right.decode(ids, skip_special_tokens=False)
    return right.parse(right.tokenizer(text, add_special_tokens=False)["input_ids"], **options)


def end_twice(right, messages, *, ended, **options):
    return right.render_next(messages, ended=False, **options)


def end_never(right, messages, *, ended, **options):
    return right.render_next(messages, ended=True, **options)


def with_space(right, text):
    return right.tokenizer(" " + text, add_special_tokens=False)["input_ids"]


PLANTED = {
    "the answer is tokenized again": ids_changed(again),
    "the answer's blanks are stripped": ids_changed(stripped),
    "the last sampled token is dropped": ids_changed(lambda right, ids: ids[:-1]),
    "the history is rendered again": {"extend": rendered_again},
    "the separator behind the end is dropped": both(lambda right, ids: ids[1:]),
    "the generation prompt is cut": both(lambda right, ids: ids[:-1]),
    "the generation prompt is doubled": both(lambda right, ids: [*ids, *ids[-1:]]),
    "the start token is doubled": {
        "render": lambda right, *args: [right.tokenizer.bos_token_id, *right.render(*args)]
    },
    "the start token is dropped": {"render": lambda right, *args: right.render(*args)[1:]},
    "every turn begins with a start token": both(
        lambda right, ids: [right.tokenizer.bos_token_id, *ids]
    ),
    "the end of a turn is doubled": {"render_next": end_twice},
    "a cut turn is not closed": {"render_next": end_never},
    "a fork is not told": {"extend": no_fork},
    "everything forks": {"extend": always_fork},
    "other tokens of the same text fork": {"extend": strict_fork},
    "control words of observations are tokens": {
        "encode": lambda right, text: as_tokens(right).encode(text)
    },
    "control words of prompts are tokens": {
        "render": lambda right, *args: as_tokens(right).render(*args)
    },
    "control words of later messages are tokens": {
        "render_next": lambda right, messages, **o: as_tokens(right).render_next(messages, **o)
    },
    "control words are removed from contents": on_contents(lambda text: text.replace("é", "")),
    "contents are normalized": on_contents(lambda text: unicodedata.normalize("NFKC", text)),
    "contents are stripped of double blanks": on_contents(lambda text: text.replace("  ", " ")),
    "results change their order": messages_changed(lambda messages: messages[::-1]),
    "one of two results is lost": messages_changed(lambda messages: messages[:1]),
    "results are messages of the user": messages_changed(
        lambda messages: [{**m, "role": "user"} if m["role"] == "tool" else m for m in messages]
    ),
    "tools are left out": {"render": lambda right, messages, tools=(): right.render(messages)},
    "an observation begins with a space": {"encode": with_space},
    "calls are read from text": {"parse": by_text},
    "arguments are written anew": parse_changed(dumped_calls),
    "false becomes False": parse_changed(python_calls),
    "the second of two calls is lost": parse_changed(
        lambda right, answer: replace(answer, tool_calls=answer.tool_calls[:1])
    ),
    "all calls have one name": parse_changed(
        lambda right, answer: replace(
            answer, tool_calls=tuple(replace(call, id="call") for call in answer.tool_calls)
        )
    ),
    "a thought stays in the content": parse_changed(
        lambda right, answer: replace(
            answer, reasoning="", content=answer.reasoning + (answer.content or "")
        )
    ),
    "the prompt's thought is overlooked": {
        "parse": lambda right, ids, **options: right.parse(ids, prompt_ids=[])
    },
    "broken calls raise": {"parse": raising},
    "broken calls are passed over": parse_changed(
        lambda right, answer: replace(answer, malformed=())
    ),
}


@pytest.mark.parametrize("name", AUDITED)
def test_the_audit_finds_nothing_in_the_renderer(name):
    assert list(audit(RENDERERS[name], name)) == []


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_caught(fault):
    assert any(
        any(True for _ in audit(Wrapped(RENDERERS[name], **PLANTED[fault]), name))
        for name in AUDITED
    )


def test_there_are_at_least_25_planted_faults():
    assert len(PLANTED) >= 25
