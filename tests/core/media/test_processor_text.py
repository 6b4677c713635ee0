"""Text and tokens of a model's processor beside its chat template."""

import pytest

from rlhf_core.media.processor_text import NOTHING, ProcessorText
from rlhf_core.media.reference import MediaRef
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.learned.chat_spans import ChatSpans
from rlhf_testing.tiny import tiny_tokenizer

BREAKS = ProcessorText(marker="~", around="ab")
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}>"
    "{% generation %}{{ m['content'] }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}~{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
IMAGE = MediaRef(sha256="0" * 64, num_bytes=9, format="png", width=2, height=2)


def test_text_stands_before_and_behind_each_marker():
    assert BREAKS.written("x~y~") == "xab~abyab~ab"
    assert NOTHING.written("x~y~") == "x~y~"


@pytest.mark.parametrize("text", ["x~y~z", "~~", "none"])
def test_places_are_those_of_the_same_characters(text):
    written = BREAKS.written(text)

    for index, character in enumerate(text):
        if character != "~":
            assert written[BREAKS.moved(text, index)] == character
    assert BREAKS.moved(text, len(text)) == len(written)


def test_the_first_token_is_put_there_once():
    begins = ProcessorText(begin=(1,))

    assert list(begins.begun([5, 6])) == [1, 5, 6]
    assert list(begins.begun([1, 5, 6])) == [1, 5, 6]
    assert list(NOTHING.begun([5])) == [5]


def test_learned_turns_of_generation_blocks_move_with_the_text():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    chat = [
        {
            "role": "user",
            "content": [{"type": "image", "media": IMAGE.fields()}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": "yes"},
    ]

    found = ChatSpans(TokenizerRenderer(tokenizer, writing=BREAKS)).find(chat, [1])

    assert found.text == f"ab~ab?>yes{tokenizer.eos_token}"
    assert [found.text[slice(*span)] for span in found.spans] == [f"yes{tokenizer.eos_token}"]
