"""Tokens between turns: as the template writes them after this conversation, or a fork that says why."""

import pytest
from tests.libs.data.chat.template import shipped
from tests.libs.data.chat.zoo import KINDS, renderer_of, tokenizer_of

from rlhf_data.chat.turns import first_difference

USER = {"role": "user", "content": "What is this?"}
AGAIN = {"role": "user", "content": "Sure?"}
CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
RESULT = {"role": "tool", "content": "42"}


def sampled(name, text):
    return tokenizer_of(name)(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "rewriting"])
def test_an_extended_conversation_is_what_the_template_writes(name):
    renderer, end = renderer_of(name), KINDS[name].end
    prompt = renderer.render([USER])
    answer = sampled(name, "The answer is 4")
    if name in (
        "unigram",
        "mistral",
    ):  # a space before the text is a token there, unlike within a conversation
        answer = answer[1:] if renderer.decode(answer[:1]) == "" else answer
    ids = [*prompt, *answer, renderer.tokenizer.convert_tokens_to_ids(end)]
    messages = [USER, {"role": "assistant", "content": "The answer is 4"}]

    continued = renderer.extend(messages, ids, [AGAIN], ended=True, as_template=True)

    assert continued.token_ids[: len(ids)] == tuple(ids) or continued.forked
    assert continued.forked == (name == "opened thought")
    shown = renderer.decode(continued.token_ids, skip_special_tokens=False)
    whole = renderer.decode(renderer.render([*messages, AGAIN]), skip_special_tokens=False)
    assert first_difference(shown, whole) is None


def test_a_template_that_rewrites_its_prompt_forks_and_says_why():
    renderer = renderer_of("rewriting")
    ids = [*renderer.render([USER]), *sampled("rewriting", "4<|im_end|>")]
    messages = [USER, {"role": "assistant", "content": "4"}]

    kept = renderer.extend(messages, ids, [AGAIN], ended=True)
    again = renderer.extend(messages, ids, [AGAIN], ended=True, as_template=True)

    assert kept.token_ids[: len(ids)] == tuple(ids)
    assert (kept.forked, again.forked) == (False, True)
    assert list(again.token_ids) == renderer.render([*messages, AGAIN])
    assert "'[1]" in again.reason
    assert "'[3]" in again.reason


def test_a_thought_that_the_template_drops_is_a_fork():
    renderer = renderer_of("thinking")
    ids = [*renderer.render([USER]), *sampled("thinking", "<think>\nhm\n</think>\n\n4<|im_end|>")]
    messages = [USER, renderer.parse(ids[len(renderer.render([USER])) :]).message()]

    kept = renderer.extend(messages, ids, [AGAIN], ended=True)
    again = renderer.extend(messages, ids, [AGAIN], ended=True, as_template=True)

    think = renderer.texts.words.ids["<think>"]
    assert kept.token_ids[: len(ids)] == tuple(ids)
    assert (kept.forked, again.forked) == (False, True)
    assert think not in again.token_ids
    assert "<think>" in again.reason


def test_a_thought_within_a_cycle_of_tools_is_kept():
    renderer = renderer_of("thinking")
    call = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a":1}}\n</tool_call><|im_end|>'
    ids = [*renderer.render([USER]), *sampled("thinking", call)]
    messages = [USER, renderer.parse(sampled("thinking", call)).message()]

    continued = renderer.extend(messages, ids, [RESULT], ended=True, as_template=True)

    assert not continued.forked, continued.reason
    assert continued.token_ids[: len(ids)] == tuple(ids)


@pytest.mark.parametrize("name", ["hermes", "thinking", "deepseek", "mistral"])
def test_results_follow_calls_as_the_template_writes_them(name):
    renderer, end = renderer_of(name), KINDS[name].end
    message = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
    shown = renderer.render_text([USER, message], reply=False)
    ids = sampled(name, shown[: shown.rindex(end) + len(end)])

    continued = renderer.extend(
        [USER, message], ids, [RESULT, RESULT], ended=True, as_template=name != "thinking"
    )

    assert not continued.forked, continued.reason
    whole = renderer.render_text([USER, message, RESULT, RESULT])
    text = renderer.decode(continued.token_ids, skip_special_tokens=False)
    if name != "thinking":  # which writes an empty thought where nobody thought
        assert first_difference(text, whole) is None


ANSWERED = {"role": "assistant", "content": "4"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": "abcdefghi"}]}
NAMED = {**RESULT, "name": "add", "tool_call_id": "abcdefghi"}
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


def extended_by_released(name, messages, answer, following, stop):
    """The text of a next turn behind what a policy sampled through ``stop``, and what Transformers writes of all."""
    renderer = shipped.renderer_of(name)
    tools = [ADD] if answer.get("tool_calls") else []
    whole = renderer.tokenizer.apply_chat_template(
        [*messages, answer, *following],
        tools=tools or None,
        tokenize=False,
        add_generation_prompt=True,
    )
    prompt = renderer.render(messages, tools)
    rest = whole.removeprefix(renderer.decode(prompt, skip_special_tokens=False))
    turn = rest[: rest.index(stop) + len(stop)]
    ids = [*prompt, *renderer.tokenizer(turn, add_special_tokens=False)["input_ids"]]
    made = renderer.extend([*messages, answer], ids, following, ended=True, tools=tools)
    assert list(made.token_ids[: len(ids)]) == ids
    return renderer.decode(made.token_ids, skip_special_tokens=False), whole


@pytest.mark.parametrize(
    ("name", "answer", "following", "stop"),
    [
        ("glm4moe", ANSWERED, [AGAIN], "<|user|>"),
        ("glm4moe", CALLED, [NAMED], "<|observation|>"),
        ("gemma4_v5", ANSWERED, [AGAIN], "<turn|>"),
        ("gemma4_v5", CALLED, [NAMED], "<|tool_response>"),
        ("gptoss", CALLED, [NAMED], "<|call|>"),
        ("qwen3", CALLED, [NAMED], "<|im_end|>"),
        ("mistral_v13", CALLED, [NAMED], "</s>"),
    ],
)
@pytest.mark.parametrize("history", [(), (USER, ANSWERED) * 3], ids=["short", "long"])
def test_the_token_at_which_a_released_model_stops_is_there_once(
    name, answer, following, stop, history
):
    """Of GLM it is the mark of the message that follows, of Gemma 4 and gpt-oss one behind calls alone."""
    text, whole = extended_by_released(name, [*history, USER], answer, following, stop)

    assert text == whole


def test_an_answer_of_gpt_oss_has_one_end_where_a_question_follows():
    """Its policies stop at ``<|return|>``, and its template ends earlier answers with ``<|end|>``."""
    renderer = shipped.renderer_of("gptoss")
    prompt = renderer.render([USER])
    turn = "<|channel|>final<|message|>4<|return|>"
    ids = [*prompt, *renderer.tokenizer(turn, add_special_tokens=False)["input_ids"]]

    made = renderer.extend([USER, ANSWERED], ids, [AGAIN], ended=True)
    cut = renderer.extend([USER, ANSWERED], ids[:-1], [AGAIN], ended=False)

    said = "<|start|>user<|message|>Sure?<|end|><|start|>assistant"
    behind = [one.token_ids[len(prompt) :] for one in (made, cut)]
    assert renderer.decode_batch(behind, skip_special_tokens=False) == [
        turn + said,
        turn.replace("<|return|>", "<|end|>") + said,
    ]


def test_results_that_a_template_shows_before_the_content_of_their_call_are_shown():
    both = {**CALLED, "tool_calls": [{**CALL, "id": "abcdefghi"}, {**CALL, "id": "call_1"}]}
    results = [NAMED, {"role": "tool", "content": "43", "tool_call_id": "call_1", "name": "add"}]

    text, whole = extended_by_released("gemma4_v5", [USER], both, results, "<|tool_response>")

    assert text == whole
    assert text.index("42") < text.index("43")


def test_such_results_are_shown_also_where_nobody_says_which_call_they_answer():
    renderer = shipped.renderer_of("gemma4_v5")

    text = renderer.decode(renderer.render_next([NAMED], ended=True), skip_special_tokens=False)

    assert text == '<|tool_response>response:add{value:<|"|>42<|"|>}<tool_response|>'


def test_a_turn_that_ends_at_another_token_gets_the_mark_of_the_next_message():
    renderer = shipped.renderer_of("glm4moe")
    prompt = renderer.render([USER])
    think = renderer.texts.words.ids["<think>"]

    made = renderer.extend([USER, ANSWERED], [*prompt, think], [AGAIN], ended=True)

    text = renderer.decode(made.token_ids[len(prompt) :], skip_special_tokens=False)
    assert text == "<think><|user|>\nSure?<|assistant|>"


def test_other_blanks_are_no_difference():
    assert first_difference("a  b\n", "a b") is None
    assert "from character 3 on" in first_difference("a b", "a c")
    assert "from character 2 on" in first_difference("a", "ab")


@pytest.mark.parametrize("name", KINDS)
def test_a_turn_is_closed_once(name):
    renderer, end = renderer_of(name), KINDS[name].end
    token = renderer.tokenizer.convert_tokens_to_ids(end)

    cut, ended = (renderer.render_next([AGAIN], ended=ended) for ended in (False, True))

    assert cut == [*cut[: len(cut) - len(ended)], *ended]
    assert cut.count(token) == ended.count(token) + 1


def test_a_result_follows_a_call_also_where_nobody_says_which():
    """A template may refuse a result that follows no call."""
    renderer = renderer_of("hermes")
    strict = tokenizer_of("hermes").chat_template.replace(
        "{% elif m.role == 'tool' %}",
        "{% elif m.role == 'tool' %}{% if not messages[loop.index0 - 1].tool_calls "
        "and messages[loop.index0 - 1].role != 'tool' %}{{ raise_exception('no call') }}{% endif %}",
    )
    expected = renderer.render_next([RESULT, RESULT], ended=True)
    renderer.tokenizer.chat_template, before = strict, renderer.tokenizer.chat_template
    try:
        assert renderer.render_next([RESULT, RESULT], ended=True) == expected
    finally:
        renderer.tokenizer.chat_template = before


def chat_of(num_turns, last=None):
    answer = {"role": "assistant", "content": "4"}
    return [*[USER, answer] * (num_turns - 1), USER, last or answer]


@pytest.fixture
def shown(monkeypatch):
    """The number of messages in each rendering."""
    from rlhf_data.chat.rendering import ChatTemplate

    counts, real = [], ChatTemplate.text
    monkeypatch.setattr(
        ChatTemplate,
        "text",
        lambda self, messages, **more: counts.append(len(messages)) or real(self, messages, **more),
    )
    return counts


@pytest.mark.parametrize("name", KINDS)
def test_what_a_turn_costs_does_not_grow_with_the_chat(name, shown):
    """Every kind of template here writes the same behind an answer, whatever was said before."""
    renderer = fresh_renderer(name)
    renderer.extend(chat_of(3), [5], [AGAIN], ended=True)
    shown.clear()

    short = renderer.extend(chat_of(3), [5], [AGAIN], ended=True)
    num_short = sum(shown)
    long = renderer.extend(chat_of(100), [5], [AGAIN], ended=True)

    assert sum(shown) == 2 * num_short <= 8
    assert short == long
    assert not long.showed_all
    whole = renderer._turns._behind_stand_in(chat_of(100)[:-1], (), [AGAIN], ())
    assert list(long.token_ids[-len(whole) :]) in (whole, list(long.token_ids)), "as shown whole"


@pytest.mark.parametrize("name", ["hermes", "thinking", "deepseek", "mistral"])
def test_results_of_tools_cost_the_same_in_a_long_chat(name, shown):
    renderer = fresh_renderer(name)
    chat = [{"role": "system", "content": "Be kind."}, USER]
    chat += [{"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT] * 50
    chat.append({"role": "assistant", "content": "", "tool_calls": [CALL, CALL]})
    renderer.extend(chat, [5], [RESULT, RESULT], ended=True)
    shown.clear()

    made = renderer.extend(chat, [5], [RESULT, RESULT], ended=True)

    assert sum(shown) <= 10
    assert not made.showed_all


COUNTING = (  # the number of the turn stands before each question, so all before it matters
    "{% for m in messages %}[{{ loop.index }}]<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def fresh_renderer(name, template=None):
    import copy

    from rlhf_data.chat.renderer import TokenizerRenderer

    tokenizer = copy.deepcopy(tokenizer_of(name))
    tokenizer.chat_template = template or tokenizer.chat_template
    return TokenizerRenderer(tokenizer)


def test_a_template_that_counts_turns_is_shown_all_of_them_and_this_is_told():
    renderer = fresh_renderer("chatml", COUNTING)
    chat = chat_of(5)

    made = renderer.extend(chat, [5], [AGAIN], ended=True)

    assert made.showed_all
    assert "[11]<|im_start|>user\nSure?" in renderer.decode(
        made.token_ids, skip_special_tokens=False
    )


@pytest.mark.parametrize(
    ("before", "following"),
    [
        ([USER, {"role": "system", "content": "Now be kind."}, USER], [AGAIN]),
        ([USER, {"role": "assistant", "content": "4"}, USER], [{"role": "other", "content": "x"}]),
    ],
)
def test_a_conversation_of_an_unknown_kind_is_shown_whole(before, following):
    chat = [*before, {"role": "assistant", "content": "4"}]

    assert fresh_renderer("chatml").extend(chat, [5], following, ended=True).showed_all
