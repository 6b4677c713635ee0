"""Contents reach a template as a text or as parts, whichever it writes, and no part is dropped."""

import pytest
from tests.libs.data.chat.template.shipped import ENDS, renderer_of, tokenizer_with

from rlhf_core.errors import DataError
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.chat.template.contents import ContentForm
from rlhf_testing.errors import has_code

PARTS = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
ANSWER = {"role": "assistant", "content": "It is."}

FORMS = {
    name: ContentForm.PARTS if name in ("llava_1_5", "llava_next", "smolvlm") else ContentForm.TEXT
    for name in ENDS
} | dict.fromkeys(
    (
        "gemma3",
        "gemma4_v5",
        "glm4moe",
        "mistral_v3",
        "mistral_v7",
        "mistral_v13",
        "qwen2_5_vl",
        "qwen3_5_think",
    ),
    ContentForm.BOTH,
)


@pytest.mark.parametrize("name", ENDS)
def test_a_template_is_tried_for_the_form_that_it_writes(name):
    (message,) = renderer_of(name).template.contents.fitted([{"role": "user", "content": PARTS}])
    (text,) = renderer_of(name).template.contents.fitted([{"role": "user", "content": "Hi"}])

    form = FORMS[name]
    assert message["content"] == ("What is this?" if form is ContentForm.TEXT else PARTS)
    assert text["content"] == (
        [{"type": "text", "text": "Hi"}] if form is ContentForm.PARTS else "Hi"
    )


@pytest.mark.parametrize("name", ENDS)
def test_a_text_and_its_one_part_are_the_same_to_every_template(name):
    """Else a question would be empty, or Python's spelling of a list."""
    renderer = renderer_of(name)
    chats = [
        [{"role": "user", "content": content}, ANSWER, {"role": "user", "content": content}]
        for content in (
            "What is this?",
            [{"type": "text", "text": "What is this?"}],
            ["What is this?"],
            [{"text": "What is this?", "type": None, "image": None}],
        )
    ]

    texts = [renderer.render_text(chat) for chat in chats]

    assert texts == [texts[0]] * 4
    assert texts[0].count("What is this?") == 2


def test_a_list_that_a_template_pipes_is_one_text():
    piped = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"

    text = TokenizerRenderer(tokenizer_with(piped)).render_text(
        [{"role": "user", "content": PARTS}]
    )

    assert text == "user: What is this?\n"


@pytest.mark.parametrize(
    ("part", "said", "code"),
    [
        (
            {"type": "audio", "audio": "a.wav"},
            "message 2, part 1: expected a part of type text .* one of type 'audio'",
            "data/unknown-part",
        ),
        (
            {"type": "input_image", "image_url": "a.png"},
            "one of type 'input_image' with image_url, type",
            "data/unknown-part",
        ),
        (
            {"image": "a.png"},
            r'one without a type with image; .* Give it its type: \{"type": "image", "image": \.\.\.\}$',
            "data/unknown-part",
        ),
        (
            {"type": "text", "text": "x", "cache_control": {}},
            "a text has the unknown key cache_control",
            "data/unknown-part",
        ),
        (
            {"type": "image", "image": "a.png", "resized_height": 28},
            "an image has the unknown key resized_height",
            "data/unknown-part",
        ),
        (
            {"type": "video", "video": "a.mp4"},
            "message 2, part 1: a video is a.mp4; expected the frames of the video as a list",
            "data/unknown-part",
        ),
        (
            {"type": "video", "video": ["a.png", "b.png"], "nframes": 2},
            "a video has the unknown key nframes",
            "data/unknown-part",
        ),
        ({"type": "text", "text": None}, "got one of type 'text' with type", "data/unknown-part"),
        (3, "expected text or an object as a part of content, got int 3", "data/bad-message"),
    ],
)
def test_a_part_that_nothing_reads_is_refused(part, said, code):
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [part]}]

    with pytest.raises(DataError, match=said, check=has_code(code)):
        renderer_of("qwen2_5_vl").render(chat)
