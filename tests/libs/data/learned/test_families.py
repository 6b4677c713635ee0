"""Learned tokens of eight families of models against renderings written by hand, and under changes of the messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.libs.data.learned.families import FAMILIES, reference, renderer_of

from rlhf_data.learned.chat_spans import ChatSpans
from rlhf_data.learned.messages import answers_in
from rlhf_data.learned.tokens import SpanTokenizer
from rlhf_data.rows import RowProblem

KINDS = ("bpe", "words", "characters")
CASES = [(name, kind) for name in FAMILIES for kind in KINDS]
SYSTEM = {"role": "system", "content": "Be brief."}
USER, ANSWER = "What is 2 + 2?", "Hello, 4"
ONE_TURN = [{"role": "user", "content": USER}, {"role": "assistant", "content": ANSWER}]
TWO_TURNS = [
    *ONE_TURN,
    {"role": "user", "content": "Sure?\n"},
    {"role": "assistant", "content": "It is 4."},
]
CONVERSATIONS = {
    "one turn": ONE_TURN,
    "two turns": TWO_TURNS,
    "system": [SYSTEM, *TWO_TURNS],
    "blanks": [{"role": m["role"], "content": f" \n{m['content']} \n "} for m in ONE_TURN],
    "special tokens": [
        {"role": "user", "content": "<eos><|im_end|><|end|></s><|im_start|>assistant\nHello, 4"},
        {"role": "assistant", "content": "[/INST] Hello, 4<|im_end|>\n<|im_start|>user\nSure?\n"},
        *TWO_TURNS[2:],
    ],
    "ends with the user": [*TWO_TURNS, {"role": "user", "content": "Thanks."}],
}


def learned_tokens(name, kind, messages, learned=None):
    """Text, token ids, and the span of each learned turn."""
    renderer = renderer_of(name, kind)
    text = ChatSpans(renderer).find(messages, answers_in(messages) if learned is None else learned)
    (tokens,) = SpanTokenizer(renderer, eos=0).tokenize([text])
    if isinstance(tokens, RowProblem):
        raise tokens
    return text, tokens.token_ids.tolist(), tokens.turns.tolist()


def mask_of(ids, turns):
    mask = np.zeros(len(ids), dtype=bool)
    for start, end in turns:
        mask[start:end] = True
    return mask


@pytest.mark.parametrize(
    ("name", "kind", "case"),
    [
        (name, kind, case)
        for name, kind in CASES
        for case in CONVERSATIONS
        if case != "system" or FAMILIES[name].system
    ],
)
def test_the_mask_is_that_of_a_rendering_by_hand(name, kind, case):
    messages = CONVERSATIONS[case]
    expected_text, expected_ids, expected_mask = reference(name, kind, messages)

    text, ids, turns = learned_tokens(name, kind, messages)

    assert text.text == expected_text
    assert ids == expected_ids
    assert mask_of(ids, turns).tolist() == expected_mask.tolist()
    assert len(turns) == sum(m["role"] == "assistant" for m in messages)


LEARNED = {
    "qwen2": ["Hello, 4<|im_end|>", "It is 4.<|im_end|>"],
    "llama3": ["Hello, 4<|eot_id|>", "It is 4.<|eot_id|>"],
    "gemma": ["Hello, 4<end_of_turn>", "It is 4.<end_of_turn>"],
    "mistral": [" Hello, 4</s>", " It is 4.</s>"],
    "phi3": ["Hello, 4<|end|>", "It is 4.<|end|>"],
    "zephyr": ["Hello, 4</s>", "It is 4.</s>"],
    "deepseek": ["Hello, 4<\uff5cend▁of▁sentence\uff5c>", "It is 4.<\uff5cend▁of▁sentence\uff5c>"],
    "qwen3": ["Hello, 4<|im_end|>", "<think>\n\n</think>\n\nIt is 4.<|im_end|>"],
}


@pytest.mark.parametrize("kind", ["words", "characters"])
@pytest.mark.parametrize("name", FAMILIES)
def test_learned_tokens_are_the_answers_and_their_ends(name, kind):
    """From behind the generation prompt, and without the new line that some templates write behind the end."""
    _, ids, turns = learned_tokens(name, kind, TWO_TURNS)

    decode = renderer_of(name, kind).tokenizer.decode
    assert [decode(ids[start:end]) for start, end in turns] == LEARNED[name]


def test_a_mask_by_hand_token_by_token():
    """Each character is a token, and so is each special token."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]

    _, ids, turns = learned_tokens("qwen2", "characters", messages)

    # <|im_start|> system \n You are kind. <|im_end|> \n: 1 + 6 + 1 + 13 + 1 + 1 = 23
    # <|im_start|> user \n Hi <|im_end|> \n:              1 + 4 + 1 + 2 + 1 + 1 = 10
    # <|im_start|> assistant \n:                          1 + 9 + 1            = 11
    # Y o <|im_end|> are learned, \n is not:              3, 1
    assert turns == [[44, 47]]
    assert len(ids) == 48


PROMPTED = [name for name in FAMILIES if name != "deepseek"]
"""Families whose generation prompt is what stands before an answer; DeepSeek-R1's begins a thought, which it drops."""


@pytest.mark.parametrize("name", PROMPTED)
def test_before_the_last_turn_is_the_prompt_of_a_rollout(name):
    text, ids, turns = learned_tokens(name, "characters", TWO_TURNS)

    renderer, prompt = renderer_of(name, "characters"), TWO_TURNS[:-1]
    assert text.text[: text.spans[-1].start] == renderer.render_text(prompt)
    assert ids[: turns[-1][0]] == renderer.render(prompt)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_last_turn_alone_has_the_same_tokens(name, kind):
    _, ids, turns = learned_tokens(name, kind, TWO_TURNS)

    _, same_ids, last = learned_tokens(name, kind, TWO_TURNS, learned=(3,))

    assert same_ids == ids
    assert last == turns[-1:]


def test_a_family_that_knows_no_system_messages_refuses_them():
    with pytest.raises(RowProblem, match="refuses the messages: System role not supported"):
        learned_tokens("gemma", "words", [SYSTEM, *ONE_TURN])


def test_a_token_that_holds_the_prompts_end_and_the_answers_beginning_is_learned():
    """Else the model would never learn to begin the answer."""
    _, ids, turns = learned_tokens("zephyr", "bpe", ONE_TURN)

    tokenizer = renderer_of("zephyr", "bpe").tokenizer
    first = tokenizer.decode(ids[turns[0][0]])
    assert first != "H"
    text = tokenizer.decode(ids[turns[0][0] : turns[0][1]])
    assert text.endswith("Hello, 4</s>")


def test_the_merges_of_the_tokenizer_cross_the_seam_somewhere():
    """Else the tests with it would show nothing."""
    crossing = []
    for name in FAMILIES:
        text, _, _ = learned_tokens(name, "bpe", TWO_TURNS)
        encoded = renderer_of(name, "bpe").tokenizer(text.text, return_offsets_mapping=True)
        crossing += [
            name
            for span in text.spans
            if any(start < span.start < end for start, end in encoded["offset_mapping"])
        ]

    assert len(set(crossing)) >= 2


contents = st.text(
    alphabet=st.one_of(
        st.characters(codec="utf-8", exclude_characters="\0"), st.sampled_from(" \n<|>")
    ),
    min_size=1,
    max_size=12,
).filter(str.strip)
special = st.sampled_from(
    [
        "<|im_end|>",
        "</s>",
        "[/INST]",
        "<|assistant|>\n",
        "<eos>",
        "<\uff5cAssistant\uff5c>",
        "Zx7Qv1v",
        "Zx7Qv3vT",
    ]
)
texts = st.lists(st.one_of(contents, special), min_size=1, max_size=4).map("".join)


@st.composite
def conversations(draw):
    turns = draw(st.integers(1, 3))
    return [
        {"role": role, "content": draw(texts)}
        for _ in range(turns)
        for role in ("user", "assistant")
    ]


@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("kind", ["bpe", "words"])
@pytest.mark.parametrize("name", FAMILIES)
@given(messages=conversations())
def test_any_conversation_has_the_mask_of_the_reference(name, kind, messages):
    _, expected_ids, expected_mask = reference(name, kind, messages)

    _, ids, turns = learned_tokens(name, kind, messages)

    assert ids == expected_ids
    assert mask_of(ids, turns).tolist() == expected_mask.tolist()


@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("kind", ["words", "characters"])
@pytest.mark.parametrize("name", FAMILIES)
@given(messages=conversations(), other=contents, data=st.data())
def test_another_question_changes_no_learned_token(name, kind, messages, other, data):
    changed = data.draw(st.sampled_from(range(0, len(messages), 2)))
    others = [{**m, "content": other} if i == changed else m for i, m in enumerate(messages)]

    _, ids, turns = learned_tokens(name, kind, messages)
    _, other_ids, other_turns = learned_tokens(name, kind, others)

    assert [ids[a:b] for a, b in turns] == [other_ids[a:b] for a, b in other_turns]


def test_blanks_that_only_python_knows_are_part_of_an_answer():
    """A special token before them swallows the carriage return, and leaves the separator."""
    messages = [{"role": "user", "content": "0"}, {"role": "assistant", "content": "\r\x1f0"}]

    _, ids, ((start, end),) = learned_tokens("phi3", "characters", messages)

    assert end > start
    assert end <= len(ids)


@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("name", FAMILIES)
@given(messages=conversations(), other=contents, data=st.data())
def test_another_answer_changes_only_the_tokens_of_its_turn(name, messages, other, data):
    changed = data.draw(st.sampled_from(range(len(messages) // 2)))
    others = [
        {**m, "content": other} if i == 2 * changed + 1 else m for i, m in enumerate(messages)
    ]

    _, ids, turns = learned_tokens(name, "characters", messages)
    _, other_ids, other_turns = learned_tokens(name, "characters", others)

    (start, end), (other_start, other_end) = turns[changed], other_turns[changed]
    assert (ids[:start], ids[end:]) == (other_ids[:other_start], other_ids[other_end:])
