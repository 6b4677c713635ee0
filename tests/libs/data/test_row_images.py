"""Rows with images: their prompts, the tokens, the tasks, and every bad image by file and row."""

import pytest
from tests.images import noisy, refused, saved

from rlhf_core.errors import DataError
from rlhf_core.media.loader import MediaLoader, MediaOptions
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.processor_text import ProcessorText
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.reference import MediaRef
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.made.prompts import BLIND_ROWS, PromptReader
from rlhf_data.responses import load_responses
from rlhf_data.row_images import SeenRows, check_seen
from rlhf_data.sources import open_source
from rlhf_data.tasks import load_task_set
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}~{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
"""``~`` is the marker of an image."""


class Tokens:
    """An image has as many tokens as it is wide."""

    never_sampled = ()
    writing = ProcessorText()

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
        MediaLoader(MediaOptions(folder=str(tmp_path / "run/media"))), Tokens(marker), "images"
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
    assert reader.loader.store.path(seen.media[0]).read_bytes() == (tmp_path / "a.png").read_bytes()
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
    with pytest.raises(
        DataError,
        match=r"has 53 tokens, --data\.max_prompt_tokens allows 52",
        check=has_code("data/too-long"),
    ):
        load(path, max_prompt_tokens=52)


@pytest.mark.parametrize("name", [*refused(), "missing"])
def test_a_bad_image_is_named_by_file_and_row_before_training(tmp_path, write_rows, load, name):
    (tmp_path / "good.png").write_bytes(saved(noisy()))
    code = "data/missing-image"
    if name != "missing":
        content, _, code = refused()[name]
        (tmp_path / "bad.png").write_bytes(content)
    rows = [{"prompt": "a", "images": ["good.png"]}, {"prompt": "b", "images": ["bad.png"]}]
    path = write_rows(rows)

    with pytest.raises(
        DataError, match=r"1 of 2 rows cannot be used.*\n  .*rows.jsonl:2: ", check=has_code(code)
    ):
        load(path)
    assert len(load(path, on_bad_row="skip")) == 1


@pytest.mark.parametrize(
    ("row", "reason", "code"),
    [
        (
            {"prompt": "<image><image>", "images": ["good.png"]},
            "1 images and 2 places",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "<image>", "images": ["good.png"] * 2},
            "2 images and 1 places",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "a ~ b", "images": ["good.png"]},
            "1 images and 2 places",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "a", "images": ["good.png"] * 17},
            "17 images in one sequence, --data.max_images allows 16",
            "data/too-many-images",
        ),
        (
            {"prompt": "a", "images": ["high.png"]},
            "the model reads no image higher than 100",
            "data/aspect-ratio",
        ),
        (
            {"prompt": "a", "images": ["https://example.org/x.png"]},
            "--data.allow_image_urls",
            "data/url-of-an-image",
        ),
        ({"prompt": "a", "images": 7}, "expected an image as a path", "data/no-image"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}]},
            "a video is a.mp4; expected the frames of the video as a list of images",
            "data/unknown-part",
        ),
    ],
)
def test_images_that_do_not_fit_their_prompt_are_named(
    tmp_path, write_rows, load, row, reason, code
):
    (tmp_path / "good.png").write_bytes(saved(noisy()))
    (tmp_path / "high.png").write_bytes(saved(noisy(4, 101)))

    with pytest.raises(DataError, match=rf"rows.jsonl:1: .*{reason}", check=has_code(code)):
        load(write_rows([row]))


def test_images_need_a_chat(tmp_path, write_rows, load):
    (tmp_path / "good.png").write_bytes(saved(noisy()))

    with pytest.raises(
        DataError, match=r"--data\.chat", check=has_code("data/images-without-a-chat")
    ):
        load(write_rows([{"prompt": "a", "images": ["good.png"]}]), chat=False)


def test_a_text_model_is_given_no_image(write_rows, run_config, seeing):
    content = [{"type": "image", "image": "a.png"}]
    path = write_rows([{"prompt": [{"role": "user", "content": content}]}])

    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:1.*an image.*--model\.vision",
        check=has_code("data/image-for-a-text-model"),
    ):
        load_task_set(run_config(train=[path]), seeing)


def test_images_are_kept_when_their_task_is_made_and_decoded_by_nobody_here(
    tmp_path, write_rows, load, reader, monkeypatch
):
    """Forty rows and one step: one image of forty, as a link to its file."""

    def decoded(image):
        raise AssertionError("the pixels were decoded")

    monkeypatch.setattr("rlhf_core.media.inspecting._load", decoded)
    for number in range(40):
        (tmp_path / f"{number}.png").write_bytes(saved(noisy(6 + number, 4)))
    path = write_rows([{"prompt": "a", "images": [f"{number}.png"]} for number in range(40)])

    tasks = load(path)
    assert not reader.loader.store.folder.exists()
    tasks.task(3, 0)

    (kept,) = (one for one in reader.loader.store.folder.rglob("*") if one.is_file())
    assert kept.resolve() == tmp_path / "3.png"


def test_an_image_that_changed_since_the_start_is_named_by_its_row(tmp_path, write_rows, load):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    tasks = load(write_rows([{"prompt": "a", "images": ["a.png"]}]))
    (tmp_path / "a.png").unlink()

    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:1: there is no image file",
        check=has_code("data/missing-image"),
    ):
        tasks.task(0, 0)


def looks_itself(reader, **options) -> ImageReader:
    """The reader without the name of a column."""
    return ImageReader(reader.loader, reader.tokens, **options)


@pytest.mark.parametrize("column", ["images", "image"])
def test_the_usual_columns_are_found(tmp_path, write_rows, run_config, seeing, reader, column):
    (tmp_path / "a.png").write_bytes(saved(noisy(6, 4)))
    path = write_rows([{"prompt": "is <image>?", column: "a.png", "max_pixels": 12}])

    tasks = load_task_set(run_config(train=[path], chat=True), seeing, images=looks_itself(reader))

    task = tasks.task(0, 0)
    (image,) = task.media
    assert image.limits.max_pixels == 12
    assert task.row[column] == [image.fields()]


@pytest.mark.parametrize("key", [None, "images", "image"])
@pytest.mark.parametrize(
    ("row", "reason", "code"),
    [
        (
            {"prompt": "<image>How many?", "imgs": ["a.png"]},
            "rows.jsonl:1: there are 0 images and 1",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "<image>How many?", "images": []},
            "rows.jsonl:1: there are 0 images and 1",
            "data/images-and-places-differ",
        ),
        (
            {"prompt": "How many?", "imgs": ["a.png"]},
            "none of 2 rows .from .*rows.json.* has an image",
            "data/no-images",
        ),
        ({"prompt": "How many?", "images": []}, "none of 2 rows .* has an image", "data/no-images"),
    ],
)
def test_rows_that_would_train_blind_are_refused(
    tmp_path, write_rows, run_config, seeing, reader, key, row, reason, code
):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    config = run_config(train=[write_rows([row, row])], chat=True)

    with pytest.raises(DataError, match=rf"{reason}(.|\n)*--data\.image_key", check=has_code(code)):
        load_task_set(config, seeing, images=looks_itself(reader, key=key))


def test_rows_that_are_meant_to_have_no_image_are_read(write_rows, run_config, seeing, reader):
    config = run_config(train=[write_rows([{"prompt": "write <image> in HTML"}])], chat=True)

    tasks = load_task_set(config, seeing, images=looks_itself(reader, key=""))

    assert seeing.decode(tasks.task(0, 0).prompt_ids) == "write <image> in HTML"


def test_later_turns_may_bring_all_images_unless_a_column_is_misspelled(
    write_rows, run_config, seeing, reader
):
    config = run_config(train=[write_rows([{"prompt": "go", "imgs": ["a.png"]}])], chat=True)

    assert len(load_task_set(config, seeing, images=looks_itself(reader, draws=True))) == 1
    with pytest.raises(DataError, match="column 'images'", check=has_code("data/no-images")):
        load_task_set(config, seeing, images=looks_itself(reader, key="images", draws=True))


def test_a_set_without_images_beside_others_is_a_warning(
    tmp_path, run_config, seeing, reader, caplog
):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    (tmp_path / "seen.jsonl").write_text('{"prompt": "a", "images": ["a.png"]}')
    (tmp_path / "blind.jsonl").write_text('{"prompt": "a", "imgs": ["a.png"]}')
    files = [str(tmp_path / name) for name in ("seen.jsonl", "blind.jsonl")]

    load_task_set(run_config(train=files, chat=True), seeing, images=looks_itself(reader))

    (record,) = caplog.records
    assert record.getMessage().startswith("data.train: blind: none of 1 rows (from ")


def test_two_columns_of_images_are_refused(tmp_path, write_rows, run_config, seeing, reader):
    (tmp_path / "a.png").write_bytes(saved(noisy()))
    path = write_rows([{"prompt": "a", "images": ["a.png"], "image": "a.png"}])

    with pytest.raises(DataError, check=has_code("data/several-columns-of-images")):
        load_task_set(run_config(train=[path], chat=True), seeing, images=looks_itself(reader))


def test_a_place_in_plain_text_is_refused(write_rows, load):
    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:1: the prompt has a place .*--data\.chat",
        check=has_code("data/images-and-places-differ"),
    ):
        load(write_rows([{"prompt": "<image>How many?"}]), chat=False)


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
    assert (reader.loader.store.folder / span.image.file_name).is_file()
    assert found.media_of(1) == ()


def test_a_bad_image_of_a_response_to_imitate_is_named_by_its_row(
    run_config, seeing, reader, write_rows
):
    config = run_config(chat=True)
    path = write_rows([{"prompt": "<image>", "images": "gone.png", "response": "no"}])
    supervised = config.supervised.model_copy(update={"data": (path,)})
    config = config.model_copy(update={"supervised": supervised})

    with pytest.raises(
        DataError,
        match=r"supervised\.data: 1 of 1 rows.*\n.*rows\.jsonl:1: .*gone\.png",
        check=has_code("data/missing-image"),
    ):
        load_responses(config, seeing, 2, reader)


def test_a_source_whose_first_rows_have_no_image_is_warned_of(run_config, seeing, reader, caplog):
    prompts = PromptReader(run_config(chat=True).data, seeing, looks_itself(reader), every=True)

    for number in range(2 * BLIND_ROWS):
        prompts.read({"prompt": "How many?", "imgs": ["a.png"]}, f"row {number}")

    (record,) = caplog.records
    assert "none of the first 64 rows has an image" in record.getMessage()
    assert "columns prompt, imgs" in record.getMessage()


@pytest.mark.parametrize(
    ("row", "column"),
    [({"images": ["a.png"]}, "images"), ({"image": {"path": "a.png"}}, "image")],
)
def test_images_of_rows_for_a_model_that_reads_text_are_named(write_rows, caplog, row, column):
    source = open_source(write_rows([{"prompt": "Hi", "images": []}, {"prompt": "Hi", **row}]))

    check_seen(None, "data.train", [SeenRows(source, 0)])

    (said,) = caplog.messages
    assert f"data.train: rows have images in the column {column!r} (from " in said
    assert "rows.jsonl:2 on), and the model reads text alone" in said


def test_empty_columns_of_images_say_nothing(write_rows, caplog):
    source = open_source(write_rows([{"prompt": "Hi", "images": [], "image": None}]))

    check_seen(None, "data.train", [SeenRows(source, 0)])

    assert not caplog.messages
