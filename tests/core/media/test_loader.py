"""Images as users give them, in messages and beside them, as references."""

import base64
import io
import socket
import threading
from pathlib import Path

import pytest
from PIL import Image
from tests.images import noisy, saved, turned_jpeg

from rlhf_core.media.given import plain_image
from rlhf_core.media.inspecting import MediaLimits
from rlhf_core.media.loader import Intake, MediaLoader, MediaOptions, images_in
from rlhf_core.media.parts import plain_messages, references_in
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.reference import PixelLimits

IMAGE = noisy()
CONTENT = saved(IMAGE)
OTHER = saved(noisy(8, 8))


@pytest.fixture
def loader(tmp_path) -> MediaLoader:
    return MediaLoader(
        MediaOptions(folder=str(tmp_path / "media"), limits=MediaLimits(max_images=3))
    )


def chat(*parts) -> list[dict]:
    return [{"role": "user", "content": list(parts)}]


def text(words: str) -> dict:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    "value",
    [
        CONTENT,
        IMAGE,
        "a.png",
        Path("a.png"),
        {"bytes": CONTENT, "path": "gone.png"},
        {"bytes": None, "path": "a.png"},
        {"image": "a.png"},
        {"url": "a.png"},
        {"base64": base64.b64encode(CONTENT).decode()},
        "data:image/png;base64," + base64.b64encode(CONTENT).decode(),
        base64.b64encode(CONTENT).decode(),
        base64.encodebytes(CONTENT).decode(),
        base64.b64encode(saved(IMAGE, "JPEG")).decode(),  # begins as a path would, with /9j/
        {"bytes": base64.b64encode(CONTENT).decode()},
        saved(IMAGE.convert("CMYK"), "JPEG"),
        IMAGE.convert("CMYK"),
        {"image_url": {"url": "data:image/png;base64," + base64.b64encode(CONTENT).decode()}},
    ],
)
def test_an_image_may_be_given_in_many_forms(loader, tmp_path, value):
    (tmp_path / "a.png").write_bytes(CONTENT)

    reference = loader.take(value, tmp_path)

    assert (reference.width, reference.height) == IMAGE.size
    assert loader.store.path(reference).is_file()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("gone.png", "there is no image file .*gone.png"),
        (".", "there is no image file"),
        ("https://example.org/a.png", "--data.allow_image_urls"),
        ({"base64": "???"}, "base64 is malformed"),
        ({"base64": 3}, "base64 as text"),
        ("data:image/png,abc", "data URL in base64"),
        (5, "expected an image as a path, bytes"),
        ({}, "expected an image as a path, bytes"),
        ("a\0b.png", "image"),
    ],
)
def test_what_is_no_image_is_refused(loader, tmp_path, value, reason):
    with pytest.raises(MediaProblem, match=reason):
        loader.take(value, tmp_path)


ANSWERS = {
    "good": b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(CONTENT) + CONTENT,
    "cut off": b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(CONTENT) + CONTENT[:90],
    "gone": b"HTTP/1.0 404 Not Found\r\n\r\n",
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
    "large": b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 5000,
}


@pytest.fixture
def url_of():
    """Serves one answer to one request, and returns the address."""
    servers = []

    def serve(answer: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=once, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/a.png"

    yield serve
    for server in servers:
        server.close()


def test_a_url_is_fetched_where_that_is_allowed(tmp_path, url_of):
    loader = MediaLoader(MediaOptions(folder=str(tmp_path / "media"), allow_urls=True))

    reference = loader.take({"image_url": {"url": url_of(ANSWERS["good"])}}, tmp_path)

    assert loader.store.read(reference) == CONTENT


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut off", "image file is truncated"),
        ("gone", "cannot be fetched: HTTP Error 404"),
        ("no HTTP", "cannot be fetched: hello"),
        ("nothing", "cannot be fetched: Remote end closed"),
        ("large", r"--data\.max_image_bytes allows 4000"),
    ],
)
def test_a_url_that_gives_no_image_is_refused(tmp_path, url_of, name, reason):
    options = MediaOptions(limits=MediaLimits(max_bytes=4000), allow_urls=True)

    with pytest.raises(MediaProblem, match=reason):
        MediaLoader(options).take(url_of(ANSWERS[name]), tmp_path)


def test_an_address_that_is_none_is_refused(tmp_path):
    with pytest.raises(MediaProblem, match="cannot be fetched"):
        MediaLoader(MediaOptions(allow_urls=True)).take("http://a b/c.png", tmp_path)


def test_a_file_above_the_limit_is_not_read(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(2**40)  # sparse: a terabyte that takes no space

    with pytest.raises(MediaProblem, match=r"1099511627776 bytes, --data\.max_image_bytes"):
        MediaLoader(MediaOptions()).take("large.png", tmp_path)


def test_parts_of_messages_become_references(loader):
    messages = chat(
        text("see"), {"type": "image", "image": CONTENT}, {"type": "image", "image": OTHER}
    )

    (message,) = loader.messages(messages)

    first, second = references_in([message])
    assert [first.width, second.width] == [20, 8]
    assert message["content"][0] == text("see")
    assert loader.messages([message]) == (message,)


def test_places_are_filled_in_their_order(loader):
    messages = chat(text("a"), {"type": "image"}, text("b"), {"type": "image", "text": None})

    found = references_in(loader.messages(messages, [CONTENT, OTHER]))

    assert [image.width for image in found] == [20, 8]


def test_marks_in_texts_are_places(loader):
    messages = [{"role": "user", "content": "one <image> and <image>two"}]

    (message,) = loader.messages(messages, [CONTENT, OTHER])

    kinds = [part.get("text") or part["type"] for part in message["content"]]
    assert kinds == ["one ", "image", " and ", "image", "two"]


def test_without_a_place_images_come_first_for_the_user(loader):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "what?"}]

    _, user = loader.messages(messages, [CONTENT])

    assert [part["type"] for part in user["content"]] == ["image", "text"]


def test_a_mark_is_text_where_no_images_come_beside_it(loader):
    """In what environments and agents write; in rows it is a place."""
    messages = [{"role": "user", "content": "write <image> in HTML"}]

    assert loader.messages(messages) == tuple(messages)
    with pytest.raises(MediaProblem, match="there are 0 images and 1 places"):
        loader.messages(messages, intake=Intake(marks=True))


@pytest.mark.parametrize(
    "value",
    [
        "x" * 2_000_000,
        "iVBORw0KGgo" + "?" * 2_000_000,
        base64.b64encode(CONTENT + b"x" * 2_000_000).decode()[:-9] + "????",
        "data:image/png;base64," + "?" * 2_000_000,
        "data:" + "x" * 2_000_000,
        "https://example.org/" + "x" * 2_000_000,
        "folder/" * 600,
        {"image": {"x" * 2_000_000: 1}},
        ["x" * 2_000_000],
        {"bytes": b"x" * 2_000_000},
    ],
)
def test_a_message_repeats_little_of_a_value(loader, value):
    with pytest.raises(MediaProblem) as error:
        loader.take(value, Path())

    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("parts", "images", "widths"),
    [
        ([{"type": "image", "index": 1}, {"type": "image", "index": 0}], [CONTENT, OTHER], [8, 20]),
        ([{"type": "image", "index": 0}, {"type": "image", "index": 0}], [CONTENT], [20, 20]),
        ([{"type": "image", "index": None}, text("a")], [CONTENT], [20]),
    ],
)
def test_places_may_say_which_image_they_show(loader, parts, images, widths):
    assert [one.width for one in references_in(loader.messages(chat(*parts), images))] == widths


@pytest.mark.parametrize(
    ("parts", "images"),
    [
        ([{"type": "image", "index": 1}], [CONTENT]),
        ([{"type": "image", "index": 0}], [CONTENT, OTHER]),
        ([{"type": "image", "index": 0}, {"type": "image"}], [CONTENT, OTHER]),
        ([{"type": "image", "index": "0"}], [CONTENT]),
    ],
)
def test_numbers_that_are_not_those_of_the_images_are_refused(loader, parts, images):
    with pytest.raises(MediaProblem, match=r"have the numbers \(index\)"):
        loader.messages(chat(*parts), images)


def test_limits_of_an_area_are_the_parts_then_those_of_the_row(loader):
    parts = [
        {"type": "image", "image": CONTENT, "max_pixels": 64, "text": ""},
        {"type": "image"},
        {"type": "image"},
        {"type": "image_url", "image_url": {"url": plain_image(CONTENT), "detail": "auto"}},
    ]
    beside = [OTHER, {"image": OTHER, "min_pixels": 9}]
    intake = Intake(pixels=PixelLimits(max_pixels=400))
    loader = MediaLoader(MediaOptions())

    found = references_in(loader.messages(chat(*parts), beside, intake=intake))

    assert [(one.limits.min_pixels, one.limits.max_pixels) for one in found] == [
        (None, 64),
        (None, 400),
        (9, 400),
        (None, 400),
    ]


@pytest.mark.parametrize(
    ("part", "beside", "reason"),
    [
        ({"image": CONTENT, "resized_height": 28}, (), "an image has resized_height, which is not"),
        ({"image_url": {"url": "a.png", "detail": "low"}}, (), "an image has detail"),
        ({}, [{"image": CONTENT, "resized_width": 28}], "an image has resized_width"),
        ({"image": CONTENT, "max_pixels": "64"}, (), "max_pixels is 64; expected pixels"),
        ({"image": CONTENT, "max_pixels": 3, "min_pixels": 4}, (), "min_pixels is 4; expected at"),
    ],
)
def test_what_an_image_says_is_obeyed_or_refused(loader, part, beside, reason):
    with pytest.raises(MediaProblem, match=reason):
        loader.messages(chat({"type": "image", **part}), beside)


def test_a_turned_image_of_pillow_is_taken_as_it_is_shown(loader, tmp_path):
    with Image.open(io.BytesIO(turned_jpeg(6, 20, 12))) as image:
        reference = loader.take(image, tmp_path)

    assert (reference.width, reference.height) == (12, 20)


def test_files_stay_where_they_are_and_nothing_is_kept_for_a_first_look(tmp_path):
    (tmp_path / "a.png").write_bytes(CONTENT)
    linking, copying = (
        MediaLoader(MediaOptions(folder=str(tmp_path / name), copies=name == "copies"))
        for name in ("links", "copies")
    )

    linking.take("a.png", tmp_path, Intake(decodes=False, keeps=False))
    assert not linking.store.folder.exists()
    first, second = (loader.take("a.png", tmp_path) for loader in (linking, copying))

    assert linking.store.path(first).resolve() == tmp_path / "a.png"
    assert not copying.store.path(second).is_symlink()
    assert linking.store.read(first) == copying.store.read(second) == CONTENT


def test_an_image_of_16_bits_is_warned_of_once(loader, tmp_path, caplog):
    deep = [saved(Image.new("I;16", (8, 6), value)) for value in (100, 200)]

    for one in deep:
        loader.take(one, tmp_path)

    (record,) = caplog.records
    assert "its values above 255 show white" in record.getMessage()


@pytest.mark.parametrize(
    ("parts", "images"),
    [
        ([{"type": "image"}], []),
        ([{"type": "image"}], [CONTENT, CONTENT]),
        ([text("<image><image>")], [CONTENT]),
    ],
)
def test_more_or_fewer_images_than_places_are_refused(loader, parts, images):
    with pytest.raises(MediaProblem, match=r"there are \d images and \d places"):
        loader.messages(chat(*parts), images)


def test_too_many_images_are_refused(loader):
    with pytest.raises(
        MediaProblem, match=r"4 images in one sequence, --data\.max_images allows 3"
    ):
        loader.messages(chat(text("x")), [CONTENT] * 4)


def test_plain_messages_hold_no_bytes_and_mean_the_same(loader):
    messages = chat({"type": "image", "image": IMAGE}, {"type": "image", "image": CONTENT})

    plain = plain_messages(messages)

    assert all(isinstance(part["image"], str) for part in plain[0]["content"])
    assert [i.sha256 for i in references_in(loader.messages(plain))] == [
        i.sha256 for i in references_in(loader.messages(messages))
    ]


def test_a_column_holds_one_image_or_a_list():
    assert images_in(None) == []
    assert images_in("a.png") == ["a.png"]
    assert images_in(["a.png", "b.png"]) == ["a.png", "b.png"]
    with pytest.raises(MediaProblem, match="list of lists"):
        images_in([["a.png"]])
