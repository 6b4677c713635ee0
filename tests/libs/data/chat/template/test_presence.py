"""Whatever a template leaves out of a conversation is named, whoever renders it."""

import random
import re

import pytest
from tests.cases import one_in
from tests.libs.data.chat.template.conversations import random_conversation
from tests.libs.data.chat.template.shipped import ENDS, renderer_of, source_of, tokenizer_with
from transformers.utils.chat_template_utils import render_jinja_template

from rlhf_core.errors import DataError
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.learned.chat_spans import ChatSpans
from rlhf_data.learned.learned_text import LearnedText
from rlhf_data.learned.tokens import LearnedTokens, SpanTokenizer
from rlhf_data.rows import RowProblem
from rlhf_testing.errors import has_code

USER = {"role": "user", "content": "What is this?"}
ANSWER = {"role": "assistant", "content": "It is."}
SYSTEMS = ("system", "developer")
SYSTEM = {"role": "system", "content": "Be kind."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00000",
            "type": "function",
            "function": {"name": "look", "arguments": {"at": "it"}},
        }
    ],
}
RESULT = {"role": "tool", "content": "42", "name": "look", "tool_call_id": "call00000"}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}


@pytest.mark.parametrize(
    ("name", "messages", "said"),
    [
        (
            "qwen2_5",
            [{**SYSTEM, "role": "developer"}, USER],
            r"^message 1 \(developer\): the chat template does not show its text: 'Be kind.' is missing. Give it the "
            "role system, or merge it into the first message of the user$",
        ),
        (
            "gptoss",
            [USER, ANSWER, SYSTEM, USER],
            r"^message 3 \(system\): the chat template does not show its text: 'Be kind.' is missing. Merge it into "
            r"the first message of the user \(it may be --data.system_prompt\)",
        ),
        (
            "deepseekv3",
            [USER, ANSWER, SYSTEM, USER],
            r"^message 3 \(system\): the chat template shows it before the messages that it follows.* Merge it into",
        ),
        (
            "phi3",
            [USER, CALL, RESULT],
            r"^message 2 \(assistant\): .* the call of look: 'look' is missing",
        ),
        (
            "phi3",
            [USER, ANSWER, RESULT, USER],
            r"^message 3 \(tool\): .*does not show its text: '42' is missing",
        ),
        (
            "deepseek_r1_distill",
            [SYSTEM, {**SYSTEM, "content": "And brief."}, USER],
            r"^message 1 \(system\)",
        ),
        (
            "llama3_1",
            [USER, {**CALL, "content": "Let me see."}, RESULT],
            r"^message 2 .*: 'Let me see.' is missing",
        ),
    ],
)
def test_what_a_template_leaves_out_is_named(name, messages, said):
    with pytest.raises(DataError, match=said, check=has_code("data/hidden-by-the-template")):
        renderer_of(name).render(messages)


def test_a_tool_that_is_not_shown_is_named():
    with pytest.raises(
        DataError,
        match=r"^tool 1 \(look\): the chat template does not show the tool: 'look'",
        check=has_code("data/hidden-by-the-template"),
    ):
        renderer_of("llama3").render([USER], [TOOL])


FIELDS = {
    "name": (
        {**USER, "name": "Bob"},
        r"'name': 'Bob' is missing. Write it into the content, or leave",
    ),
    "call": (
        {**ANSWER, "function_call": {"name": "look", "arguments": '{"at": "it"}'}},
        r"'function_call': '.*' is missing. Write it as tool_calls",
    ),
    "refusal": ({**ANSWER, "refusal": "I will not."}, r"'refusal': 'I will not.' is missing"),
    "images": (
        {**USER, "images": ["a.png"]},
        r"'images': 'a.png' is missing. Give images as parts",
    ),
    "as the template's own": ({**USER, "name": "user"}, r"'name'"),
}


@pytest.mark.parametrize("case", FIELDS)
@pytest.mark.parametrize("name", ["qwen2_5", "mistral_v7"])
def test_a_field_that_says_something_is_looked_for(name, case):
    message, said = FIELDS[case]
    messages = [USER, message, USER] if message["role"] == "assistant" else [message]
    where = rf"^message {len(messages) // 2 + 1} \({message['role']}\)"

    with pytest.raises(
        DataError,
        match=rf"{where}: the chat template does not show its field {said}",
        check=has_code("data/hidden-by-the-template"),
    ):
        renderer_of(name).render(messages)


def test_the_name_of_a_result_and_fields_without_a_value_say_nothing():
    extra = {"name": "", "refusal": None, "images": [], "id": "17"}

    renderer = renderer_of("qwen2_5")
    plain = renderer.render([USER, CALL, RESULT])

    assert renderer.render([{**USER, **extra}, CALL, RESULT]) == plain


def test_a_template_that_shows_names_may_have_them():
    tokenizer = tokenizer_with(
        "{% for m in messages %}{{ m.name or m.role }}: {{ m.content }}<end>{% endfor %}",
        "<end>",
    )

    assert "Bob: What" in TokenizerRenderer(tokenizer).render_text([{**USER, "name": "Bob"}])


def test_other_fields_that_are_not_shown_are_named_once(caplog):
    renderer = renderer_of("qwen2_5")
    for country in ("Chad", "Peru"):
        renderer.render([{**USER, "country": country, "turn_id": 3, "weight": 0}])

    assert [
        record.getMessage() for record in caplog.records if "country" in record.getMessage()
    ] == [
        "messages have the field 'country', which the chat template does not show: the model reads nothing of it, such "
        "as 'Chad'"
    ]
    assert "weight" not in caplog.text


def test_a_text_that_the_template_has_in_its_own_words_is_missed_too():
    """``You`` is in the system prompt that Qwen2.5 writes itself, and stands nowhere for the developer."""
    with pytest.raises(
        DataError,
        match=r"message 1 \(developer\): .* does not show messages of this role there",
        check=has_code("data/hidden-by-the-template"),
    ):
        renderer_of("qwen2_5").render([{"role": "developer", "content": "You"}, USER])


def test_a_second_call_is_missed_though_it_is_the_same_as_the_first():
    twice = {**CALL, "tool_calls": CALL["tool_calls"] * 2}

    with pytest.raises(
        DataError,
        match=r"message 2 \(assistant\): .* does not show the call of look\. Write it",
        check=has_code("data/hidden-by-the-template"),
    ):
        renderer_of("gptoss").render([USER, twice, RESULT])


def test_what_follows_an_answer_is_looked_for_too():
    renderer = renderer_of("phi3")

    with pytest.raises(
        DataError,
        match=r"message 1 \(tool\): .* its text: '42' is missing",
        check=has_code("data/hidden-by-the-template"),
    ):
        renderer.extend([USER, ANSWER], [5], [RESULT, USER], ended=True)


def test_a_search_costs_one_rendering_for_each_shape(monkeypatch):
    renderer = TokenizerRenderer(tokenizer_with(source_of("qwen2_5")))
    renderer.chat_text([SYSTEM, USER])
    shown = []
    real = renderer.template.rendered
    monkeypatch.setattr(
        renderer.template, "rendered", lambda *a, **k: shown.append(1) or real(*a, **k)
    )

    for number in range(50):
        renderer.chat_text([SYSTEM, {**USER, "content": f"What is {number}?"}])

    assert len(shown) == 50


def library_text(name, messages, tools, reply):
    """The text that Transformers makes; None where the template refuses the messages."""
    tokenizer = renderer_of(name).tokenizer
    try:
        return render_jinja_template(
            [renderer_of(name).template.fitted(messages, tools)],
            tools or None,
            None,
            tokenizer.chat_template,
            add_generation_prompt=reply,
            **tokenizer.special_tokens_map,
        )[0][0]
    except Exception:
        return None


def chat_text(name, conversation):
    """The text of a conversation, or the error that refuses it."""
    try:
        return renderer_of(name).chat_text(conversation.messages, tools=conversation.tools).text
    except DataError as error:
        return error


def is_moved(messages, text):
    """Whether a text has a later system message before the first message that is none."""
    turns = [index for index, message in enumerate(messages) if message["role"] not in SYSTEMS]
    if not turns:
        return False
    begins = min((text.find(word) for word in words_of(messages[turns[0]])), default=0)
    later = [message for message in messages[turns[0] :] if message["role"] in SYSTEMS]
    return any(text.find(word) < begins for message in later for word in words_of(message))


def words_of(message):
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return re.findall(r"w\d+q", " ".join(texts))


def check_rendering(name, conversation):
    """A rendering has every word, or the conversation is refused: for a word that is missing, or by the template."""
    text = library_text(name, conversation.messages, conversation.tools, reply=True)
    is_whole = (
        text is not None
        and all(word in text for word in conversation.words)
        and not is_moved(conversation.messages, text)
    )
    made = chat_text(name, conversation)
    assert (made == text) if is_whole else isinstance(made, DataError), f"{made!r}\n{text}"
    return is_whole


def check_spans(name, spans, tokenizer, conversation):
    """The learned tokens have all words of the learned answers, and no word of anything else."""
    messages, learned = conversation.messages, conversation.answers
    try:
        found = spans.find(messages, learned, conversation.tools or None)
    except RowProblem:
        return False
    assert isinstance(found, LearnedText)
    assert [word for word in conversation.words if word not in found.text] == []
    (tokens,) = tokenizer.tokenize([found])
    if isinstance(tokens, RowProblem):
        return False
    assert isinstance(tokens, LearnedTokens)
    assert len(tokens.turns) == len(learned)
    decode = renderer_of(name).decode
    for index, (start, end) in zip(learned, tokens.turns.tolist(), strict=True):
        said = decode(tokens.token_ids[start:end], skip_special_tokens=False)
        own = {word for word, owner in conversation.words.items() if owner == index}
        assert own == {word for word in conversation.words if word in said}, said
    return True


def check_conversations(name, count):
    draw = random.Random(name)
    renderer = renderer_of(name)
    spans, tokenizer = ChatSpans(renderer), SpanTokenizer(renderer, renderer.tokenizer.eos_token_id)
    shown = learned = 0
    for _ in range(count):
        shown += check_rendering(name, random_conversation(draw, ends_with_answer=False))
        learned += check_spans(
            name, spans, tokenizer, random_conversation(draw, ends_with_answer=True)
        )
    assert shown
    assert learned or name in UNLEARNABLE, "nothing was learned, so nothing was tested"


UNLEARNABLE = ("llava_1_5",)
"""Templates that write no token behind an answer by which a policy could learn to stop."""


@pytest.mark.parametrize("name", ENDS)
def test_each_piece_of_text_is_shown_or_the_row_is_refused(name):
    check_conversations(name, 40)


# A quick test has every template, with fewer conversations.
@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(4, ENDS))
def test_each_piece_of_text_of_thousands_of_conversations_is_shown_or_the_row_is_refused(name):
    check_conversations(name, 200)
