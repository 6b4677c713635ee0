"""Images of rows to learn from: their tokens, where learned turns move, and rows that are refused."""

import json

import numpy as np
import pytest
from tests.core.data.test_row_images import Tokens
from tests.images import noisy, saved

from rlhf_core.data import ConversationColumns, PairColumns, SequenceOptions, TokenizerRenderer
from rlhf_core.data.learned.conversations import load_conversations
from rlhf_core.data.learned.images import moved, with_images
from rlhf_core.data.learned.pairs import load_pairs
from rlhf_core.data.learned.tokens import LearnedTokens
from rlhf_core.data.rows import RowProblem
from rlhf_core.errors import DataError
from rlhf_core.media.desk import MediaDesk, MediaOptions
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.reference import MediaRef
from rlhf_core.media.spans import MediaSpan
from rlhf_core.testing.tiny import tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}>{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}~{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
"""``~`` is the marker of an image, ``>`` stands before an answer."""


def picture(width: int) -> MediaRef:
    return MediaRef(sha256="0" * 64, num_bytes=9, format="png", width=width, height=2)


def span(start: int, length: int) -> MediaSpan:
    return MediaSpan(start=start, length=length, image=picture(length))


def test_places_behind_an_image_move_by_its_further_tokens():
    # markers at 1 and 4; the first becomes 3 tokens, the second 2
    spans = [span(1, 3), span(6, 2)]

    places = moved(np.array([[0, 1], [2, 4], [5, 6]]), spans)

    assert places.tolist() == [[0, 1], [4, 6], [8, 9]]


def test_without_images_nothing_moves():
    assert moved(np.array([[1, 2]]), []).tolist() == [[1, 2]]


@pytest.fixture
def renderer() -> TokenizerRenderer:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return TokenizerRenderer(tokenizer)


@pytest.fixture
def reader(tmp_path, renderer) -> ImageReader:
    (marker,) = renderer.encode("~")
    return ImageReader(
        MediaDesk(MediaOptions(folder=str(tmp_path / "media"))), Tokens(marker), "images"
    )


@pytest.fixture
def load(tmp_path, renderer, reader):
    for width in (3, 5):
        (tmp_path / f"{width}.png").write_bytes(saved(noisy(width, 4)))

    def load(columns, *rows, sees=True, **options):
        file = tmp_path / "rows.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        read = load_pairs if isinstance(columns, PairColumns) else load_conversations
        return read(
            [str(file)],
            columns,
            SequenceOptions(**options),
            renderer,
            eos=renderer.tokenizer.eos_token_id,
            images=reader if sees else None,
        ).columns

    return load


def text_of(renderer, rows, row=0) -> str:
    return renderer.decode(rows.tokens_of(row).tolist(), skip_special_tokens=False)


def learned_of(renderer, rows) -> str:
    return renderer.decode(rows.token_ids[rows.action_mask].tolist(), skip_special_tokens=False)


def test_images_of_a_column_stand_in_the_prompt_with_all_their_tokens(load, renderer):
    rows = load(
        ConversationColumns(chat=True),
        {"prompt": "a<image>b<image>", "images": ["3.png", "5.png"], "response": "yes"},
    )

    eos = renderer.tokenizer.eos_token
    assert text_of(renderer, rows) == f"a~~~b~~~~~{eos}>yes{eos}"
    assert learned_of(renderer, rows) == f"yes{eos}"
    assert [(one.start, one.length) for one in rows.media_of(0)] == [(1, 3), (5, 5)]


def test_both_answers_of_a_pair_have_the_images_of_the_prompt(load, renderer):
    shown = [{"role": "user", "content": [{"type": "image", "image": "3.png"}]}]
    answers = {
        key: [{"role": "assistant", "content": [{"type": "text", "text": text}]}]
        for key, text in (("chosen", "yes"), ("rejected", "no"))
    }

    rows = load(PairColumns(), {"prompt": shown, **answers})

    eos = renderer.tokenizer.eos_token
    assert [text_of(renderer, rows, row) for row in (0, 1)] == [
        f"~~~{eos}>yes{eos}",
        f"~~~{eos}>no{eos}",
    ]
    assert rows.media_of(0) == rows.media_of(1) != ()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "images": ["4.png"], "response": "b"}, "there is no image file"),
        ({"prompt": "a<image>", "images": [], "response": "b"}, "0 images and 1 places"),
        ({"prompt": "a<image>", "imgs": ["3.png"], "response": "b"}, "columns prompt, imgs"),
        (
            {"prompt": "<image><image>", "images": ["3.png"], "response": "b"},
            "1 images and 2 places",
        ),
        ({"prompt": "a", "images": ["3.png"], "response": "a~b"}, "1 images and 2 places"),
    ],
)
def test_a_bad_row_is_named(load, row, reason):
    columns = ConversationColumns(chat=True)

    with pytest.raises(DataError, match=rf"rows.jsonl:1: .*{reason}"):
        load(columns, row)


def test_images_have_no_place_in_a_plain_text(load):
    row = {"text": "abc", "images": ["3.png"]}

    with pytest.raises(DataError, match="images need a chat prompt"):
        load(ConversationColumns(text_key="text"), row)


def test_images_in_an_answer_are_refused(load):
    messages = [
        {"role": "user", "content": "draw"},
        {"role": "assistant", "content": [{"type": "image", "image": "3.png"}]},
    ]

    with pytest.raises(DataError, match="message 2: expected text as content; got"):
        load(ConversationColumns(messages_key="messages"), {"messages": messages})


def test_a_text_model_says_what_reads_images(load):
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "3.png"}]},
        {"role": "assistant", "content": "so"},
    ]

    with pytest.raises(DataError, match=r"images need a model that reads them \(--model.vision\)"):
        load(ConversationColumns(messages_key="messages"), {"messages": messages}, sees=False)


def test_a_token_that_is_never_sampled_is_not_learned(reader):
    reader.tokens.never_sampled = (7,)
    tokens = LearnedTokens(
        token_ids=np.array([5, 7, 6], dtype=np.int32),
        turns=np.array([[1, 3]]),
        overhang=np.zeros((1, 2), dtype=np.int64),
    )

    found = with_images(tokens, (), reader)

    assert isinstance(found, RowProblem)
    assert found.kind == "image in an answer"
