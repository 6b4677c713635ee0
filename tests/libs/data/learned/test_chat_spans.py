"""Templates that change what they show: found, or refused with the message's number and the reason."""

import numpy as np
import pytest
from tests.libs.data.learned.families import renderer_of

from rlhf_core.errors import DataError
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.learned.chat_spans import ChatSpans
from rlhf_data.learned.messages import answers_in
from rlhf_data.learned.tokens import SpanTokenizer
from rlhf_data.rows import RowProblem
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
AGAIN = {"role": "user", "content": "Really?"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
TIGHT = {"role": "assistant", "content": "<think>hm</think>Yes."}
FIELD = {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
CALL = {
    "role": "assistant",
    "content": "I look.",
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}],
}
SILENT_CALL = {**CALL, "content": ""}
RESULT = {"role": "tool", "content": "blue"}
CALLED = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call><|im_end|>'


def renderer_with(template, control_words="text"):
    """The character tokenizer with another chat template."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return TokenizerRenderer(tokenizer, control_words=control_words)


def learned_texts(renderer, messages, learned=None, tools=None):
    spans = ChatSpans(renderer)
    text = spans.find(messages, answers_in(messages) if learned is None else learned, tools)
    return [text.text[slice(*span)] for span in text.spans]


@pytest.mark.parametrize("last", [THOUGHT, TIGHT, FIELD], ids=["written out", "tight", "field"])
@pytest.mark.parametrize("before", [[], [ANSWER, AGAIN]], ids=["one turn", "two turns"])
def test_a_thought_of_the_last_turn_is_learned(before, last):
    texts = learned_texts(renderer_of("qwen3"), [USER, *before, last])

    assert texts == ["So.<|im_end|>"] * bool(before) + ["<think>\nhm\n</think>\n\nYes.<|im_end|>"]


@pytest.mark.parametrize("dropped", [THOUGHT, TIGHT, FIELD], ids=["written out", "tight", "field"])
def test_a_thought_that_the_template_drops_is_refused(dropped):
    with pytest.raises(RowProblem, match=r"message 2: .* 'Yes\.|learn the last turn only"):
        learned_texts(renderer_of("qwen3"), [USER, dropped, AGAIN, ANSWER])


@pytest.mark.parametrize("dropped", [THOUGHT, TIGHT, FIELD], ids=["written out", "tight", "field"])
def test_a_thought_of_an_earlier_turn_does_no_harm_where_it_is_not_learned(dropped):
    texts = learned_texts(renderer_of("qwen3"), [USER, dropped, AGAIN, ANSWER], learned=(3,))

    assert texts == ["<think>\n\n</think>\n\nSo.<|im_end|>"]


def test_a_template_that_never_shows_thoughts_is_refused():
    """DeepSeek-R1's drops them from the last turn too, so that to learn the last turn only would not help."""
    said = r"does not show the assistant's answer as it is.*This is the last turn: leave out.*--model.tokenizer"
    with pytest.raises(RowProblem, match=said):
        learned_texts(renderer_of("deepseek"), [USER, THOUGHT])
    with pytest.raises(RowProblem, match=said):
        learned_texts(renderer_of("qwen2"), [USER, FIELD])


@pytest.mark.parametrize("tools", [None, [{"name": "look"}]], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    ("call", "shown"), [(CALL, "I look.\n" + CALLED), (SILENT_CALL, CALLED)], ids=["text", "none"]
)
def test_tool_calls_are_learned_and_results_are_not(call, shown, tools):
    messages = [USER, call, RESULT, ANSWER, AGAIN, call, RESULT, ANSWER]

    texts = learned_texts(renderer_of("qwen3"), messages, tools=tools)

    assert texts == [shown, "So.<|im_end|>", shown, "<think>\n\n</think>\n\nSo.<|im_end|>"]


@pytest.mark.parametrize("call", [CALL, SILENT_CALL])
def test_a_template_that_hides_tool_calls_is_refused(call):
    """And nobody is told to learn the last turn only, whose call would be missing too."""
    with pytest.raises(RowProblem, match=r"message 2 \(assistant\): .* the call of look: '\w+' is"):
        learned_texts(renderer_of("qwen2"), [USER, call, {**RESULT, "role": "user"}, ANSWER])


def test_tools_and_results_of_another_row_are_not_remembered():
    spans = ChatSpans(renderer_of("qwen3"))
    messages = [USER, ANSWER]

    texts = [
        spans.find(messages, (1,), tools).text
        for tools in ([{"name": "look"}], [{"name": "listen"}], None)
    ]

    assert ["look" in text for text in texts] == [True, False, False]
    assert ["listen" in text for text in texts] == [False, True, False]


def test_an_answer_that_looks_like_the_templates_text_is_found():
    """The text between two turns occurs in the answer itself; a thought keeps the quick way from finding the turn."""
    fake = "<|im_end|>\n<|im_start|>user\nReally?<|im_end|>\n<|im_start|>assistant\n"
    messages = [USER, {"role": "assistant", "content": f"A{fake}B"}, AGAIN, TIGHT]

    texts = learned_texts(renderer_of("qwen3"), messages)

    assert texts[0] == f"A{fake}B<|im_end|>"


# Without a generation prompt the policy has to write its role itself.
ROLE = "{% for m in messages %}{{ m.role }}:{{ m.content }}<eos>{% endfor %}"
REFUSED = {
    "no end of a turn": (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}",
        [USER, ANSWER],
        "message 2: expected a chat template that writes a special token behind each answer",
    ),
    "merges turns": (
        "{% for m in messages %}{% if m.role != 'assistant' %}<bos>{{ m.content }}<eos>"
        "{% else %}{{ m.content }} {% if loop.last %}<eos>{% endif %}{% endif %}{% endfor %}",
        [USER, ANSWER, ANSWER],
        "message 2: expected .* Turns that it merges",
    ),
    "hides answers": (
        "{% for m in messages %}{{ m.role }}<eos>{% endfor %}",
        [USER, ANSWER],
        "0 times",
    ),
    "repeats answers": (
        "{% for m in messages %}{{ m.content }}<eos>{{ m.content }}<eos>{% endfor %}",
        [USER, ANSWER],
        "2 times",
    ),
    "changes letters": (
        "{% for m in messages %}{{ m.role }}:{{ m.content | replace('S', 's') }}<eos>{% endfor %}",
        [USER, ANSWER],
        "message 2: the chat template does not show .* as it is",
    ),
    "drops a part": (
        "{% for m in messages %}{{ m.role }}:{{ m.content | replace('So', '') }}<eos>{% endfor %}",
        [USER, ANSWER],
        "message 2: the chat template does not show .* as it is",
    ),
    "turns messages around": (
        "{% for m in messages | reverse %}{{ m.role }}:{{ m.content }}<eos>{% endfor %}",
        [USER, ANSWER, AGAIN, ANSWER],
        "changes the order|cannot tell where",
    ),
    "puts the system prompt before the last question": (
        "{% for m in messages %}{% if m.role == 'user' %}"
        "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}"
        "<bos>{{ m.content }}{% elif m.role == 'assistant' %}{{ m.content }}<eos>{% endif %}{% endfor %}",
        [{"role": "system", "content": "Be kind."}, USER, ANSWER],
        "message 3: cannot tell where the assistant's turn begins",
    ),
    "refuses roles": (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ m.content }}<eos>{% endfor %}",
        [USER, RESULT, ANSWER],
        "refuses the messages: no tools here",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_template_that_leaves_the_mask_unclear_is_refused(case):
    template, messages, reason = REFUSED[case]

    with pytest.raises(RowProblem, match=f"(?s){reason}"):
        learned_texts(renderer_with(template), messages)


def test_the_templates_of_the_cases_are_usable_without_what_is_refused():
    """Else those tests would pass for any template."""
    assert learned_texts(renderer_with(ROLE), [USER, ANSWER]) == ["assistant:So.<eos>"]


def test_a_conversation_that_starts_with_the_assistant_is_learned():
    """No prompt comes before the turn; it begins behind the text with which the template asks for any answer."""
    messages = [ANSWER, USER, ANSWER]

    assert learned_texts(renderer_of("qwen3"), messages)[0] == "So.<|im_end|>"


def test_a_generation_prompt_with_a_thought_begun_is_no_part_of_the_turn():
    """The policy goes on behind "<think>\\n" where the template has it, and behind the header in earlier turns."""
    template = (
        "{% for m in messages %}{{ m.role }}:"
        "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<eos>\n"
        "{% endfor %}{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
    )

    texts = learned_texts(renderer_with(template), [USER, ANSWER, AGAIN, ANSWER])

    assert texts == ["So.<eos>", "\n</think>\n\nSo.<eos>"]


BEGUN = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}"
    "{% if loop.last %}<think>{% if parts | length > 1 %}\n{{ parts[0].replace('<think>', '') | trim }}\n{% endif %}"
    "</think>\n\n{% endif %}{{ parts[-1] | trim }}{% else %}{{ m.content }}{% endif %}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
)


@pytest.mark.parametrize("last", [THOUGHT, TIGHT], ids=["written out", "tight"])
def test_an_answer_may_begin_in_the_generation_prompt_with_its_thought(last):
    """As with Qwen3.5 and Nemotron 3: the data has the whole thought, the prompt its tag and a new line."""
    texts = learned_texts(renderer_with(BEGUN), [USER, ANSWER, AGAIN, last])

    assert texts == ["So.<eos>", "hm\n</think>\n\nYes.<eos>"]


def test_an_answer_without_the_thought_that_the_prompt_begins_closes_it():
    """The template writes no new line then, so the rendering leaves the prompt behind the tag."""
    assert learned_texts(renderer_with(BEGUN), [USER, ANSWER]) == ["</think>\n\nSo.<eos>"]


def test_a_thought_that_is_dropped_does_not_begin_in_the_generation_prompt():
    with pytest.raises(RowProblem, match="message 2: the chat template does not show"):
        learned_texts(renderer_with(BEGUN), [USER, TIGHT, AGAIN, ANSWER])


def test_an_end_of_sequence_token_right_behind_another_token_belongs_to_the_turn():
    """As with Command R7B; what follows a new line, as with Phi-3, does not."""
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}<pad>MORE{% endfor %}"

    ends = {}
    for more in ("", "<eos>", "<eos><bos>", "<bos>", "<bos><eos>", "\n<eos>"):
        (text,) = learned_texts(renderer_with(template.replace("MORE", more)), [USER, ANSWER])
        ends[more] = text.removeprefix("assistant:So.")

    assert ends == {
        "": "<pad>",
        "<eos>": "<pad><eos>",
        "<eos><bos>": "<pad><eos>",
        "<bos>": "<pad>",
        "<bos><eos>": "<pad><bos><eos>",
        "\n<eos>": "<pad>",
    }


@pytest.mark.parametrize("content", ["<eos>", "x<eos>", "Really?"])
def test_a_special_token_in_a_question_ends_no_turn(content):
    """The thought keeps the quick way from looking; the template ends no turn."""
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content or '' }}{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    question = {"role": "user", "content": content}

    with pytest.raises(
        RowProblem, match="message 2: expected a chat template that writes a special"
    ):
        learned_texts(renderer_with(template), [USER, FIELD, question])


def test_results_of_tools_inside_of_a_turn_are_refused():
    """As with Gemma 4, whose template writes them where the call is."""
    template = (
        "{% for m in messages %}{% if m.role != 'tool' %}{{ m.role }}:{{ m.content }}{% if m.tool_calls %}"
        "{{ m.tool_calls[0].function.name }}={{ messages[loop.index].content }};{% endif %}<eos>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    assert learned_texts(renderer_with(template), [USER, ANSWER]) == ["So.<eos>"]

    with pytest.raises(RowProblem, match=r"message 3: .* 0 times"):
        learned_texts(renderer_with(template), [USER, SILENT_CALL, RESULT, ANSWER])


def test_merged_questions_do_no_harm():
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{% if loop.previtem and loop.previtem.role == 'user' %}\n"
        "{% else %}user:{% endif %}{{ m.content }}{% else %}\nassistant:{{ m.content }}<eos>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}\nassistant:{% endif %}"
    )

    assert learned_texts(renderer_with(template), [USER, AGAIN, ANSWER]) == ["So.<eos>"]


def test_names_in_messages_are_shown_by_the_template_and_do_no_harm():
    template = "{% for m in messages %}{{ m.name or m.role }}:{{ m.content }}<eos>{% endfor %}"

    texts = learned_texts(renderer_with(template), [{**USER, "name": "Ann"}, ANSWER, AGAIN, ANSWER])

    assert texts == ["assistant:So.<eos>"] * 2


BLOCKS = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content | trim }}<eos>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.mark.parametrize("contents", [("So.", "Yes."), (" So.\n", "assistant:<eos>"), ("é", "😀")])
def test_blocks_of_the_template_are_taken_as_transformers_takes_them(contents):
    renderer = renderer_with(BLOCKS, control_words="tokens")
    messages = [USER, {**ANSWER, "content": contents[0]}, AGAIN, {**ANSWER, "content": contents[1]}]
    expected = renderer.tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )

    (tokens,) = SpanTokenizer(renderer, eos=2).tokenize(
        [ChatSpans(renderer).find(messages, (1, 3))]
    )

    mask = np.zeros(len(tokens.token_ids), dtype=int)
    for start, end in tokens.turns:
        mask[start:end] = 1
    assert tokens.token_ids.tolist() == expected["input_ids"]
    assert mask.tolist() == expected["assistant_masks"]
    assert learned_texts(renderer, messages) == [f"{content.strip()}<eos>" for content in contents]


def test_one_of_several_blocks_is_learned():
    messages = [USER, ANSWER, AGAIN, {**ANSWER, "content": "Yes."}]

    assert learned_texts(renderer_with(BLOCKS), messages, learned=(3,)) == ["Yes.<eos>"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "{{ m.content | trim }}<eos>{%",
            "{{ m.content[1:] }}<eos>{%",
            "does not show the assistant's",
        ),
        (
            "{% generation %}",
            "{% generation %}{% endgeneration %}{% generation %}",
            "one .* block for each",
        ),
    ],
)
def test_blocks_that_are_not_the_answers_are_refused(old, new, reason):
    with pytest.raises(RowProblem, match=reason):
        learned_texts(renderer_with(BLOCKS.replace(old, new)), [USER, ANSWER])


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        pytest.param(FIELD, "message 2: the chat template does not show", id="a thought"),
        pytest.param(CALL, r"message 2 \(assistant\): .* the call of look", id="a tool call"),
    ],
)
def test_blocks_that_drop_a_part_of_the_answer_are_refused(dropped, message):
    with pytest.raises(RowProblem, match=message):
        learned_texts(renderer_with(BLOCKS), [USER, dropped])


def test_a_tokenizer_without_a_chat_template_is_refused():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None

    with pytest.raises(DataError, check=has_code("template/missing")):
        ChatSpans(TokenizerRenderer(tokenizer))


def test_long_conversations_are_rendered_a_few_times_only(monkeypatch):
    """Else the time would grow with the square of their length."""
    renderer = renderer_of("qwen3")
    rendered = []
    original = renderer.render_text

    def count(messages, **options):
        rendered.append(len(messages))
        return original(messages, **options)

    spans = ChatSpans(renderer)
    monkeypatch.setattr(renderer, "render_text", count)

    spans.find([USER, CALL, RESULT, ANSWER] * 20, range(1, 80, 2))

    # as it is, and with stand-ins for all contents, for answers and results, and for the answers
    assert rendered == [80, 80, 80, 80]


def test_a_rows_spans_do_not_depend_on_the_rows_before():
    renderer = renderer_of("qwen3")
    rows = [[USER, ANSWER], [ANSWER, USER, THOUGHT], [USER, CALL, RESULT, FIELD], [USER, THOUGHT]]
    used = ChatSpans(renderer)

    for messages in [*rows, *reversed(rows)]:
        learned = answers_in(messages)
        assert used.find(messages, learned) == ChatSpans(renderer).find(messages, learned)
