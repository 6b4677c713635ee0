"""Images as users give them, in messages and beside them, as references."""

import base64
import socket
import threading
from pathlib import Path

import pytest
from tests.images import noisy, saved

from rlhf_core.media.desk import MediaDesk, MediaOptions, images_in
from rlhf_core.media.inspecting import MediaLimits
from rlhf_core.media.parts import plain_messages, references_in
from rlhf_core.media.problem import MediaProblem

IMAGE = noisy()
CONTENT = saved(IMAGE)
OTHER = saved(noisy(8, 8))


@pytest.fixture
def desk(tmp_path) -> MediaDesk:
    return MediaDesk(MediaOptions(folder=str(tmp_path / "media"), limits=MediaLimits(max_images=3)))


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
        {"image_url": {"url": "data:image/png;base64," + base64.b64encode(CONTENT).decode()}},
    ],
)
def test_an_image_may_be_given_in_many_forms(desk, tmp_path, value):
    (tmp_path / "a.png").write_bytes(CONTENT)

    reference = desk.take(value, tmp_path)

    assert (reference.width, reference.height) == IMAGE.size
    assert desk.store.path(reference).is_file()


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
def test_what_is_no_image_is_refused(desk, tmp_path, value, reason):
    with pytest.raises(MediaProblem, match=reason):
        desk.take(value, tmp_path)


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
    desk = MediaDesk(MediaOptions(folder=str(tmp_path / "media"), allow_urls=True))

    reference = desk.take({"image_url": {"url": url_of(ANSWERS["good"])}}, tmp_path)

    assert desk.store.read(reference) == CONTENT


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
        MediaDesk(options).take(url_of(ANSWERS[name]), tmp_path)


def test_an_address_that_is_none_is_refused(tmp_path):
    with pytest.raises(MediaProblem, match="cannot be fetched"):
        MediaDesk(MediaOptions(allow_urls=True)).take("http://a b/c.png", tmp_path)


def test_a_file_above_the_limit_is_not_read(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(2**40)  # sparse: a terabyte that takes no space

    with pytest.raises(MediaProblem, match=r"1099511627776 bytes, --data\.max_image_bytes"):
        MediaDesk(MediaOptions()).take("large.png", tmp_path)


def test_parts_of_messages_become_references(desk):
    messages = chat(
        text("see"), {"type": "image", "image": CONTENT}, {"type": "image", "image": OTHER}
    )

    (message,) = desk.messages(messages)

    first, second = references_in([message])
    assert [first.width, second.width] == [20, 8]
    assert message["content"][0] == text("see")
    assert desk.messages([message]) == (message,)


def test_places_are_filled_in_their_order(desk):
    messages = chat(text("a"), {"type": "image"}, text("b"), {"type": "image", "text": None})

    found = references_in(desk.messages(messages, [CONTENT, OTHER]))

    assert [image.width for image in found] == [20, 8]


def test_marks_in_texts_are_places(desk):
    messages = [{"role": "user", "content": "one <image> and <image>two"}]

    (message,) = desk.messages(messages, [CONTENT, OTHER])

    kinds = [part.get("text") or part["type"] for part in message["content"]]
    assert kinds == ["one ", "image", " and ", "image", "two"]


def test_without_a_place_images_come_first_for_the_user(desk):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "what?"}]

    _, user = desk.messages(messages, [CONTENT])

    assert [part["type"] for part in user["content"]] == ["image", "text"]


def test_a_mark_is_text_where_no_images_come_beside_it(desk):
    messages = [{"role": "user", "content": "write <image> in HTML"}]

    assert desk.messages(messages) == tuple(messages)


@pytest.mark.parametrize(
    ("parts", "images"),
    [
        ([{"type": "image"}], []),
        ([{"type": "image"}], [CONTENT, CONTENT]),
        ([text("<image><image>")], [CONTENT]),
    ],
)
def test_more_or_fewer_images_than_places_are_refused(desk, parts, images):
    with pytest.raises(MediaProblem, match=r"there are \d images and \d places"):
        desk.messages(chat(*parts), images)


def test_too_many_images_are_refused(desk):
    with pytest.raises(
        MediaProblem, match=r"4 images in one sequence, --data\.max_images allows 3"
    ):
        desk.messages(chat(text("x")), [CONTENT] * 4)


def test_plain_messages_hold_no_bytes_and_mean_the_same(desk):
    messages = chat({"type": "image", "image": IMAGE}, {"type": "image", "image": CONTENT})

    plain = plain_messages(messages)

    assert all(isinstance(part["image"], str) for part in plain[0]["content"])
    assert [i.sha256 for i in references_in(desk.messages(plain))] == [
        i.sha256 for i in references_in(desk.messages(messages))
    ]


def test_a_column_holds_one_image_or_a_list():
    assert images_in(None) == []
    assert images_in("a.png") == ["a.png"]
    assert images_in(["a.png", "b.png"]) == ["a.png", "b.png"]
    with pytest.raises(MediaProblem, match="list of lists"):
        images_in([["a.png"]])
