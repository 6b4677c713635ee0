"""Images of rows to learn from: their tokens, where learned turns move, and rows that are refused."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from tests.images import noisy, refused, saved
from tests.libs.data.test_row_images import Tokens

from rlhf_core.errors import DataError
from rlhf_core.media.loader import MediaLoader, MediaOptions
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.reference import MediaRef
from rlhf_core.media.spans import MediaSpan
from rlhf_data import ConversationColumns, PairColumns, SequenceOptions, TokenizerRenderer
from rlhf_data.learned.conversations import load_conversations
from rlhf_data.learned.images import moved, used_images, with_images
from rlhf_data.learned.pairs import load_pairs
from rlhf_data.learned.tokens import LearnedTokens
from rlhf_data.rows import RowProblem
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

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
    for width in (3, 5):
        (tmp_path / f"{width}.png").write_bytes(saved(noisy(width, 4)))
    (marker,) = renderer.encode("~")
    return ImageReader(
        MediaLoader(MediaOptions(folder=str(tmp_path / "media"))), Tokens(marker), "images"
    )


@pytest.fixture
def load(tmp_path, renderer, reader):
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


@pytest.mark.parametrize("column", [{"videos": []}, {"audios": None}, {"video": "a.mp4"}])
def test_a_word_or_a_column_alone_asks_for_no_other_medium(load, renderer, column):
    """Only where a row has both the model would be asked without what the row is about."""
    text = "a<image>" if column.get("video") else "a<image> <video> <audio>"

    rows = load(
        ConversationColumns(chat=True),
        {"prompt": text, "images": ["3.png"], "response": "yes", **column},
    )

    assert text_of(renderer, rows).startswith(text.replace("<image>", "~~~"))


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
    ("row", "reason", "code"),
    [
        (
            {"prompt": "a", "images": ["4.png"], "response": "b"},
            "there is no image file",
            "data/missing-image",
        ),
        (
            {
                "prompt": "a<image><video>",
                "images": ["3.png"],
                "videos": ["a.mp4"],
                "response": "b",
            },
            "place for what is in the column 'videos' .*expected the frames of the video as a list",
            "data/file-of-a-video",
        ),
        (
            {
                "prompt": "<image>a<audio>",
                "images": ["3.png"],
                "audios": ["a.wav"],
                "response": "b",
            },
            "place for what is in the column 'audios' .*Leave the row out",
            "data/unknown-part",
        ),
        (
            {"prompt": "a<image>", "images": [], "response": "b"},
            "0 images and 1 places",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "a<image>", "imgs": ["3.png"], "response": "b"},
            "columns prompt, imgs",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "<image><image>", "images": ["3.png"], "response": "b"},
            "1 images and 2 places",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "a", "images": ["3.png"], "response": "a~b"},
            "1 images and 2 places",
            "data/images-and-places-differ",
        ),
    ],
)
def test_a_bad_row_is_named(load, row, reason, code):
    columns = ConversationColumns(chat=True)

    with pytest.raises(DataError, match=rf"rows.jsonl:1: .*{reason}", check=has_code(code)):
        load(columns, row)


PAIR = {"prompt": "a<image>", "images": ["3.png"], "chosen": "yes", "rejected": "no"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"rejected_images": ["5.png"]},
            "column 'rejected_images' has .* column 'images' has others",
        ),
        ({"chosen_images": "5.png"}, "column 'chosen_images' has images for one answer alone"),
        (
            {"images": [], "prompt": "a", "rejected_images": ["5.png"]},
            "'rejected_images' has .* into the column 'images'",
        ),
    ],
)
def test_images_of_one_answer_of_a_pair_are_refused_by_name(load, changes, reason):
    """They were ignored, and both answers were learned behind the images of the prompt."""
    with pytest.raises(DataError, match=reason, check=has_code("data/images-of-one-answer")):
        load(PairColumns(chat=True), PAIR | changes)


@pytest.mark.parametrize("same", [{}, {"rejected_images": ["3.png"]}, {"rejected_images": []}])
def test_images_of_answers_that_are_those_of_the_prompt_are_accepted(load, same):
    rows = load(PairColumns(chat=True), PAIR | same)

    assert len(rows) == 2
    assert rows.media_of(0) == rows.media_of(1) != ()


def test_images_have_no_place_in_a_plain_text(load):
    row = {"text": "abc", "images": ["3.png"]}

    with pytest.raises(DataError, check=has_code("data/images-without-a-chat")):
        load(ConversationColumns(text_key="text"), row)


def test_images_in_an_answer_are_refused(load):
    messages = [
        {"role": "user", "content": "draw"},
        {"role": "assistant", "content": [{"type": "image", "image": "3.png"}]},
    ]

    with pytest.raises(DataError, match="message 2", check=has_code("data/not-text")):
        load(ConversationColumns(messages_key="messages"), {"messages": messages})


def test_a_text_model_says_what_reads_images(load):
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "3.png"}]},
        {"role": "assistant", "content": "so"},
    ]

    with pytest.raises(
        DataError,
        match=r"--model\.vision",
        check=has_code("data/not-text"),
    ):
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


def rows_of_forty(folder, **change):
    for number in range(40):
        (folder / f"of{number}.png").write_bytes(saved(noisy(6 + number % 7, 4)))
    row = {"prompt": "a", "response": "b"}
    return [row | {"images": [f"of{number}.png"]} | change for number in range(40)]


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Names of files that are read as a whole from now on."""
    found = []
    read_bytes = Path.read_bytes

    def counted(path):
        found.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    return found


@pytest.fixture
def on_use(reader) -> ImageReader:
    return reader.taking_on_use(compares=False)


def read(tmp_path, renderer, images, rows, **options):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return load_conversations(
        [str(tmp_path / "rows.jsonl")],
        ConversationColumns(chat=True),
        SequenceOptions(**options),
        renderer,
        eos=renderer.tokenizer.eos_token_id,
        images=images,
    ).columns


def test_of_forty_images_the_first_batch_reads_its_own(tmp_path, renderer, reader, on_use, reads):
    given = rows_of_forty(tmp_path)
    rows = read(tmp_path, renderer, on_use, given)

    assert reads == []
    assert not reader.loader.store.folder.exists()
    batch = used_images(rows.select(np.array([3])), on_use.on_use)

    assert reads == ["of3.png"]
    (kept,) = (one for one in reader.loader.store.folder.rglob("*") if one.is_file())
    assert kept.resolve() == tmp_path / "of3.png"
    (image,) = batch.media_of(0)
    assert reader.loader.store.read(image.image) == kept.read_bytes()


def test_batches_are_those_of_images_that_are_taken_in_at_once(tmp_path, renderer, reader, on_use):
    given = rows_of_forty(tmp_path, max_pixels=1000)

    expected = read(tmp_path, renderer, reader, given)
    actual = used_images(read(tmp_path, renderer, on_use, given), on_use.on_use)

    np.testing.assert_array_equal(actual.token_ids, expected.token_ids)
    np.testing.assert_array_equal(actual.media, expected.media)


def test_images_within_rows_are_written_when_they_are_used(tmp_path, renderer, reader, on_use):
    content = base64.b64encode(saved(noisy(5, 4))).decode()
    given = [{"prompt": "a", "images": [{"base64": content}], "response": "b"}]

    rows = read(tmp_path, renderer, on_use, given)
    assert not reader.loader.store.folder.exists()
    batch = used_images(rows, on_use.on_use)

    (image,) = batch.media_of(0)
    assert reader.loader.store.read(image.image) == saved(noisy(5, 4))


@pytest.mark.parametrize("name", [*refused(), "missing"])
def test_a_bad_image_is_named_before_any_is_used(tmp_path, renderer, on_use, name):
    code = "data/missing-image"
    if name != "missing":
        content, _, code = refused()[name]
        (tmp_path / "bad.png").write_bytes(content)
    given = rows_of_forty(tmp_path)
    given[6]["images"] = ["bad.png"]

    with pytest.raises(
        DataError, match=r"1 of 40 rows cannot be used.*\n  .*rows.jsonl:7: ", check=has_code(code)
    ):
        read(tmp_path, renderer, on_use, given)


def test_an_image_that_changes_before_it_is_used_is_named_by_its_row(tmp_path, renderer, on_use):
    rows = read(tmp_path, renderer, on_use, rows_of_forty(tmp_path))
    (tmp_path / "of2.png").write_bytes(saved(noisy(50, 4)))
    (tmp_path / "of3.png").unlink()

    with pytest.raises(
        DataError,
        match=r"rows.jsonl:3: an image changed since the run looked",
        check=has_code("data/image-changed"),
    ):
        used_images(rows.select(np.array([2])), on_use.on_use)
    with pytest.raises(
        DataError,
        match=r"rows.jsonl:4: there is no image file",
        check=has_code("data/missing-image"),
    ):
        used_images(rows.select(np.array([3])), on_use.on_use)


def test_rows_that_are_compared_name_images_by_their_contents(tmp_path, renderer, reader):
    """A copy of a file under another name is the same image."""
    compared = reader.taking_on_use(compares=True)
    (tmp_path / "copy.png").write_bytes((tmp_path / "3.png").read_bytes())
    given = [{"prompt": "a", "images": [name], "response": "b"} for name in ("3.png", "copy.png")]

    rows = read(tmp_path, renderer, compared, given)

    assert rows.media[0] == rows.media[1]
    assert not reader.loader.store.folder.exists()
