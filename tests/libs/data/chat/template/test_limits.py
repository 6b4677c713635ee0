"""Templates run as Transformers runs them, and one that does not end or writes without end is stopped."""

from itertools import product

import pytest
from tests.libs.data.chat.template.shipped import ENDS, source_of, tokenizer_with
from transformers.utils.chat_template_utils import render_jinja_template

from rlhf_core.errors import DataError
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.chat.template import limits
from rlhf_data.chat.template.limits import BoundedTemplate
from rlhf_testing.errors import has_code

USER = {"role": "user", "content": "Hello <b>"}
ANSWER = {"role": "assistant", "content": "It is."}
SYSTEM = {"role": "system", "content": "Be kind."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00000",
            "type": "function",
            "function": {"name": "look", "arguments": {"at": "<é>"}},
        }
    ],
}
RESULT = {"role": "tool", "content": "4", "name": "look", "tool_call_id": "call00000"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}},
            "required": ["at"],
        },
    },
}
CHATS = (
    [USER],
    [SYSTEM, USER, ANSWER],
    [USER, ANSWER, USER],
    [SYSTEM, USER, CALL, RESULT],
    [USER, USER],
)


def text_or_error(render, *args):
    try:
        return render(*args)
    except Exception as error:  # whatever a template raises
        return f"{type(error).__name__}: {error}"


WORDS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def of_library(source, chat, tools, reply):
    return render_jinja_template([chat], tools, None, source, add_generation_prompt=reply, **WORDS)[
        0
    ][0]


def bounded(source, chat, tools, reply):
    return BoundedTemplate(source).render(chat, tools=tools, reply=reply, words=WORDS).text


@pytest.mark.parametrize("name", ENDS)
def test_a_template_writes_what_it_writes_in_transformers(name):
    source = source_of(name)
    for given in product(CHATS, (None, [TOOL]), (True, False)):
        assert text_or_error(bounded, source, *given) == text_or_error(of_library, source, *given)


def test_blocks_of_generation_are_those_of_transformers():
    source = source_of("qwen3_training")
    chat = [USER, ANSWER, USER, CALL, RESULT, ANSWER]

    _, (expected,) = render_jinja_template(
        [chat], None, None, source, return_assistant_tokens_mask=True, add_generation_prompt=False
    )

    made = BoundedTemplate(source).render(chat, tools=None, reply=False, words={})
    assert list(made.blocks) == expected


LOOP = "{% for i in range(99999) %}"
ENDLESS = {
    "many pieces that are kept": "{% set s = 'x' * 999999 %}{% set t %}"
    + LOOP
    + "{{ s }}{% endfor %}{% endset %}",
    "loops": LOOP * 3 + "{% endfor %}" * 3,
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(150) }}",
}
LARGE = {
    "a product": "{{ 'x' * 2000000000 }}",
    "a power": "{{ 3 ** 99999999 }}",
    "a long list": "{{ messages * 999999999 }}",
    "a text that doubles": "{% set ns = namespace(s='x') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "a text that a filter doubles": "{% set ns = namespace(s='x') %}{% for i in range(99) %}"
    "{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}",
    "a method's result": "{{ 'x'.ljust(9999999) }}",
    "many pieces": "{% set s = 'x' * 999999 %}" + LOOP + "{{ s }}{% endfor %}",
}


def error_of(template: str, *messages) -> str:
    with pytest.raises(DataError) as caught:
        TokenizerRenderer(tokenizer_with(template)).render_text(messages or [USER])
    return str(caught.value)


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end_is_stopped(template, monkeypatch):
    monkeypatch.setattr(limits, "MAX_STEPS", 20_000)

    assert "the chat template is stopped: it does not come to an end within" in error_of(template)


@pytest.mark.parametrize("template", LARGE.values(), ids=LARGE)
def test_a_template_that_writes_without_end_is_stopped(template, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CHARACTERS", 2**20)

    said = error_of(template)

    assert "the chat template is stopped: it writes more than 1048576 characters" in said


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ range(999999999) | list }}", "OverflowError: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: maximum recursion"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ messages[0].content.x.y }}", "has no attribute 'x'"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{{ raise_exception('no ' * 900) }}", "the chat template refuses the messages: no no no"),
    ],
)
def test_whatever_a_template_raises_is_a_problem_of_the_messages(template, said):
    error = error_of(template)

    assert said in error
    assert len(error) < 300


def test_the_message_with_which_a_template_refuses_a_conversation_is_named():
    tokenizer = tokenizer_with(source_of("gemma"), "<end_of_turn>")

    with pytest.raises(
        DataError,
        match=r"^message 4 \(user\): the chat template refuses the messages: Conversation roles must alternate",
        check=has_code("data/chat-template"),
    ):
        TokenizerRenderer(tokenizer).render([USER, ANSWER, USER, USER, ANSWER, USER])


def test_a_first_message_is_not_named_for_one_that_is_missing():
    renderer = TokenizerRenderer(tokenizer_with(source_of("qwen3_5_think"), "<|im_end|>"))

    with pytest.raises(
        DataError,
        match=r"^the chat template refuses the messages: No user query found",
        check=has_code("data/chat-template"),
    ):
        renderer.render([SYSTEM, ANSWER])


def test_a_long_conversation_stays_within_the_limits():
    chat = [USER, *[CALL, RESULT] * 500]

    text = TokenizerRenderer(tokenizer_with(source_of("gptoss"))).render_text(chat)

    assert text.count("functions.look to=assistant") == 500


SHOWS = "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos>{% endfor %}"


def test_a_template_that_was_stopped_is_not_tried_again_for_what_is_longer(monkeypatch):
    tries = []
    render = BoundedTemplate.render
    monkeypatch.setattr(limits, "MAX_STEPS", 1000)
    monkeypatch.setattr(
        BoundedTemplate,
        "render",
        lambda self, chat, **rest: tries.append(len(chat)) or render(self, chat, **rest),
    )
    loop = "{% if messages | length > 2 %}{% for i in range(9999) %}{% endfor %}{% endif %}"
    template = TokenizerRenderer(tokenizer_with(loop + SHOWS)).template
    long = [USER, ANSWER, USER]

    with pytest.raises(
        DataError,
        match="is stopped: it does not come to an end",
        check=has_code("data/chat-template"),
    ):
        template.text(long, reply=True)
    first = len(tries)
    for chat in (long, [*long, ANSWER, USER]):
        with pytest.raises(
            DataError,
            match="is stopped: it does not come to an end",
            check=has_code("data/chat-template"),
        ):
            template.text(chat, reply=True)

    assert len(tries) == first
    assert "Hello" in template.text([USER, ANSWER], reply=True), "a shorter one is tried"
