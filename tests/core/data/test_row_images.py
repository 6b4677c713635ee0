"""Rows with images: their prompts, the tokens, the tasks, and every bad image by file and row."""

from pathlib import Path

import pytest
from tests.images import noisy, refused, saved

from rlhf_core.data.chat.renderer import TokenizerRenderer
from rlhf_core.data.responses import load_responses
from rlhf_core.data.tasks import load_task_set
from rlhf_core.errors import DataError
from rlhf_core.media.desk import MediaDesk, MediaOptions
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.reference import MediaRef
from rlhf_core.testing.tiny import tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}~{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
"""``~`` is the marker of an image."""


class Tokens:
    """An image has as many tokens as it is wide."""

    never_sampled = ()

    def __init__(self, marker_id: int) -> None:
        self.marker_id = marker_id

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        if image.height > 100:
            raise MediaProblem("aspect ratio", "the model reads no image higher than 100")
        return (self.marker_id,) * image.width


@pytest.fixture
def seeing() -> TokenizerRenderer:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return TokenizerRenderer(tokenizer)


@pytest.fixture
def reader(tmp_path, seeing) -> ImageReader:
    (marker,) = seeing.encode("~")
    return ImageReader(
        MediaDesk(MediaOptions(folder=str(tmp_path / "run/media"))), Tokens(marker), "images"
    )


@pytest.fixture
def load(run_config, seeing, reader):
    def load(path: str, **data):
        options = {"train": [path], "chat": True, "shuffle": False} | data
        return load_task_set(run_config(**options), seeing, images=reader)

    return load


def test_a_task_has_markers_and_references(tmp_path, write_rows, load, seeing, reader):
    (tmp_path / "a.png").write_bytes(saved(noisy(6, 4)))
    rows = [
        {"prompt": "x<image>y", "images": ["a.png"], "answer": 3},
        {"prompt": "no image", "images": []},
    ]

    tasks = load(write_rows(rows))

    seen, plain = tasks.task(0, 0), tasks.task(1, 0)
    assert seeing.decode(seen.prompt_ids) == "x~y"
    assert [(image.width, image.height) for image in seen.media] == [(6, 4)]
    assert seen.row == {"prompt": "x<image>y", "images": [seen.media[0].fields()], "answer": 3}
    assert reader.desk.store.path(seen.media[0]).read_bytes() == (tmp_path / "a.png").read_bytes()
    assert plain.media == ()
    assert seeing.decode(plain.prompt_ids) == "no image"


def test_messages_may_hold_images(tmp_path, write_rows, load):
    (tmp_path / "a.png").write_bytes(saved(noisy(6, 4)))
    content = [{"type": "text", "text": "see "}, {"type": "image", "image": "a.png"}]
    rows = [{"prompt": [{"role": "user", "content": content}]}]

    task = load(write_rows(rows)).task(0, 0)

    (message,) = task.messages
    assert message["content"][1] == {"type": "image", "media": task.media[0].fields()}
    assert task.row["prompt"] == [dict(message)]


def test_all_tokens_of_images_count_for_the_limit(tmp_path, write_rows, load):
    (tmp_path / "wide.png").write_bytes(saved(noisy(50, 4)))
    path = write_rows([{"prompt": "abc", "images": "wide.png"}])

    assert len(load(path, max_prompt_tokens=53)) == 1
    with pytest.raises(DataError, match=r"has 53 tokens, --data\.max_prompt_tokens allows 52"):
        load(path, max_prompt_tokens=52)


@pytest.mark.parametrize("name", [*refused(), "missing"])
def test_a_bad_image_is_named_by_file_and_row_before_training(tmp_path, write_rows, load, name):
    (tmp_path / "good.png").write_bytes(saved(noisy()))
    if name != "missing":
        (tmp_path / "bad.png").write_bytes(refused()[name][0])
    rows = [{"prompt": "a", "images": ["good.png"]}, {"prompt": "b", "images": ["bad.png"]}]
    path = write_rows(rows)

    with pytest.raises(DataError, match=r"1 of 2 rows cannot be used.*\n  .*rows.jsonl:2: "):
        load(path)
    assert len(load(path, on_bad_row="skip")) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "<image><image>", "images": ["good.png"]}, "1 images and 2 places"),
        ({"prompt": "<image>", "images": ["good.png"] * 2}, "2 images and 1 places"),
        ({"prompt": "a ~ b", "images": ["good.png"]}, "1 images and 2 places"),
        (
            {"prompt": "a", "images": ["good.png"] * 17},
            "17 images in one sequence, --data.max_images allows 16",
        ),
        ({"prompt": "a", "images": ["high.png"]}, "the model reads no image higher than 100"),
        ({"prompt": "a", "images": ["https://example.org/x.png"]}, "--data.allow_image_urls"),
        ({"prompt": "a", "images": 7}, "expected an image as a path"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]},
            "the messages have a video; expected images",
        ),
    ],
)
def test_images_that_do_not_fit_their_prompt_are_named(tmp_path, write_rows, load, row, reason):
    (tmp_path / "good.png").write_bytes(saved(noisy()))
    (tmp_path / "high.png").write_bytes(saved(noisy(4, 101)))

    with pytest.raises(DataError, match=rf"rows.jsonl:1: .*{reason}"):
        load(write_rows([row]))


def test_images_need_a_chat(tmp_path, write_rows, load):
    (tmp_path / "good.png").write_bytes(saved(noisy()))

    with pytest.raises(DataError, match=r"images need a chat prompt\. Add --data\.chat"):
        load(write_rows([{"prompt": "a", "images": ["good.png"]}]), chat=False)


def test_a_text_model_is_given_no_image(write_rows, run_config, seeing):
    content = [{"type": "image", "image": "a.png"}]
    path = write_rows([{"prompt": [{"role": "user", "content": content}]}])

    with pytest.raises(
        DataError, match=r"rows.jsonl:1: the messages have an image.*--model.vision"
    ):
        load_task_set(run_config(train=[path]), seeing)


def test_a_second_start_writes_no_image_again(tmp_path, write_rows, load, reader):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    path = write_rows([{"prompt": "a", "images": ["a.png"]}] * 3)
    load(path)
    files = [one for one in Path(reader.desk.store.folder).rglob("*") if one.is_file()]
    times = [file.stat().st_mtime_ns for file in files]

    load(path).task(2, 0)

    assert len(files) == 1
    assert [file.stat().st_mtime_ns for file in files] == times


def test_responses_to_imitate_have_the_images_of_their_prompts(
    run_config, seeing, reader, tmp_path, write_rows
):
    (tmp_path / "a.png").write_bytes(saved(noisy(3, 2)))
    rows = [
        {"prompt": "is <image> it", "images": "a.png", "response": "no"},
        {"prompt": "1+1", "response": "2"},
    ]
    config = run_config(chat=True)
    supervised = config.supervised.model_copy(update={"data": (write_rows(rows),)})
    config = config.model_copy(update={"supervised": supervised})

    found = load_responses(config, seeing, 2, reader)

    assert found.tokens_of(0).tolist() == [*seeing.encode("is ~~~ itno"), 2]
    assert found.actions_of(0).tolist() == [*seeing.encode("no"), 2]
    (span,) = found.media_of(0)
    assert (span.start, span.length, span.image.width) == (3, 3, 3)
    assert (reader.desk.store.folder / span.image.file_name).is_file()
    assert found.media_of(1) == ()


def test_a_bad_image_of_a_response_to_imitate_is_named_by_its_row(
    run_config, seeing, reader, write_rows
):
    config = run_config(chat=True)
    path = write_rows([{"prompt": "<image>", "images": "gone.png", "response": "no"}])
    supervised = config.supervised.model_copy(update={"data": (path,)})
    config = config.model_copy(update={"supervised": supervised})

    with pytest.raises(
        DataError, match=r"supervised\.data: 1 of 1 rows.*\n.*rows\.jsonl:1: .*gone\.png"
    ):
        load_responses(config, seeing, 2, reader)
