"""Videos as users give their frames, as references with places in time, and among tokens."""

import base64
import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tests.images import noisy, saved

from rlhf_core.batch.media_columns import media_rows, media_spans
from rlhf_core.contracts import Trajectory, Turn, Uid
from rlhf_core.media import videos
from rlhf_core.media.inspecting import MediaLimits
from rlhf_core.media.loader import Intake, MediaLoader, MediaOptions
from rlhf_core.media.parts import plain_messages, references_in
from rlhf_core.media.problem import MediaProblem
from rlhf_core.media.processor_text import ProcessorText
from rlhf_core.media.reader import ImageReader, without_images
from rlhf_core.media.reference import Frame, MediaRef, PixelLimits
from rlhf_core.media.spans import MediaSpan, expanded, seen_together

FRAMES = [noisy(20, 12), noisy(20, 12).rotate(180), Image.new("RGB", (20, 12), (9, 60, 200))]
IMAGE, VIDEO, PAD = 90, 91, 92


@pytest.fixture
def loader(tmp_path) -> MediaLoader:
    return MediaLoader(
        MediaOptions(folder=str(tmp_path / "media"), limits=MediaLimits(max_images=6))
    )


def chat(*parts: dict) -> list[dict]:
    return [{"role": "user", "content": list(parts)}]


def video(frames: object = FRAMES, **more: object) -> dict:
    return {"type": "video", "video": frames, **({"fps": 2.0} if not more else {}), **more}


def test_frames_are_references_with_places_in_time(loader):
    (message,) = loader.messages(chat(video(), {"type": "text", "text": "what?"}))

    first, second, third = references_in([message])
    assert [one.frame for one in (first, second, third)] == [
        Frame(index=index, count=3, time_s=seconds, rate=2.0)
        for index, seconds in enumerate((0.0, 0.5, 1.0))
    ]
    assert message["content"][0]["type"] == "video"
    assert loader.store.read(second) == saved(FRAMES[1])
    assert loader.messages([message]) == (message,)
    assert MediaRef.of(json.loads(json.dumps(second.fields()))) == second


def test_frames_of_two_files_of_the_same_bytes_are_kept_once(loader):
    loader.messages(chat(video([FRAMES[0], FRAMES[0], FRAMES[0]])))

    files = [path for path in loader.store.folder.rglob("*") if path.is_file()]
    assert len(files) == 1


@pytest.mark.parametrize(
    "given",
    [
        lambda one: saved(one),
        lambda one: {"base64": base64.b64encode(saved(one)).decode()},
        lambda one: {"bytes": saved(one), "path": None},
        lambda one: "data:image/png;base64," + base64.b64encode(saved(one)).decode(),
    ],
)
def test_frames_may_be_given_in_every_form_of_images(loader, given):
    whole = loader.messages(chat(video([given(one) for one in FRAMES])))

    assert references_in(whole) == references_in(loader.messages(chat(video())))


def test_frames_may_be_files_beside_the_rows(loader, tmp_path):
    for number, one in enumerate(FRAMES):
        (tmp_path / f"{number}.png").write_bytes(saved(one))

    whole = loader.messages(chat(video(["0.png", "1.png", "2.png"])), folder=tmp_path)

    assert references_in(whole) == references_in(loader.messages(chat(video())))


@pytest.mark.parametrize(
    ("times", "seconds", "rate"),
    [
        ({"fps": 4}, [0, 0.25, 0.5], 4.0),
        ({"sample_fps": 0.5}, [0, 2, 4], 0.5),
        ({"timestamps": [1, 2, 5]}, [1, 2, 5], 0.5),  # 2 distances in 4 seconds
        ({"timestamps": None, "fps": 1.0}, [0, 1, 2], 1.0),
    ],
)
def test_times_are_a_rate_or_seconds(loader, times, seconds, rate):
    frames = references_in(loader.messages(chat(video(**times))))

    assert [one.frame.time_s for one in frames] == seconds
    assert {one.frame.rate for one in frames} == {rate}


def test_without_times_frames_count_as_24_a_second_with_one_warning(loader, caplog):
    videos._warn_of_rate.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            frames = references_in(loader.messages(chat({"type": "video", "video": FRAMES})))

    assert frames[2].frame == Frame(index=2, count=3, time_s=2 / 24, rate=24.0)
    assert [record.getMessage() for record in caplog.records] == [
        "a video has neither fps nor timestamps: its frames count as 24 a second, as in Transformers. Say the true "
        "times"
    ]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (video("a.mp4"), r"a video is a\.mp4; expected the frames .* ffmpeg -i FILE -vf fps=2"),
        ({"type": "video", "path": "a.mp4"}, r"a video is a\.mp4; expected the frames"),
        ({"type": "video_url", "video_url": {"url": "https://x/a.mp4"}}, r"ffmpeg -i FILE"),
        ({"type": "video"}, "expected the frames of the video as a list"),
        (video([]), "a video has 0 frames; expected at least 2"),
        (video(FRAMES[:1]), "a video has 1 frames; expected at least 2. Give one alone as an"),
        (video([FRAMES[0], noisy(12, 20)]), "frame 2 of a video has 12 x 20 pixels, .* 20 x 12"),
        (video([FRAMES[0], "gone.png"]), r"there is no image file .*gone\.png"),
        (video([FRAMES[0], {"image": FRAMES[1], "detail": "low"}]), "an image has detail"),
        (video(fps=0), "fps is 0; expected frames a second, above 0"),
        (video(fps="2"), "fps is 2; expected frames a second"),
        (video(fps=2, timestamps=[0, 1, 2]), "several of fps, sample_fps and timestamps"),
        (video(timestamps=[0, 1]), r"timestamps is \[0, 1\]; expected 3 rising numbers from 0 on"),
        (video(timestamps=[0, 1, 1]), "expected 3 rising numbers"),
        (video(timestamps=[-1, 1, 2]), "expected 3 rising numbers"),
        (video(fps=2, nframes=8), "a video has nframes, which is not obeyed"),
        (video(fps=2, max_pixels=0), "max_pixels is 0"),
        (video(FRAMES * 3), "there are 9 images in one sequence, --data.max_images allows 6"),
    ],
)
def test_what_is_no_video_of_frames_is_named(loader, part, reason):
    with pytest.raises(MediaProblem, match=reason):
        loader.messages(chat(part))


def test_the_area_of_a_frame_is_the_nearest_limit(loader):
    intake = Intake(pixels=PixelLimits(min_pixels=4, max_pixels=64))

    found = references_in(loader.messages(chat(video(fps=1, max_pixels=32)), intake=intake))

    assert {one.limits for one in found} == {PixelLimits(min_pixels=4, max_pixels=32)}


def test_videos_cross_processes_as_plain_values(loader):
    plain = plain_messages(chat(video()))

    assert references_in(loader.messages(json.loads(json.dumps(plain)))) == references_in(
        loader.messages(chat(video()))
    )


def test_a_text_model_is_given_no_video():
    with pytest.raises(
        MediaProblem, match="the messages have a video, and the run's model reads text"
    ):
        without_images(chat(video()))


class Tokens:
    """A family that writes the width of an image in pads, and two frames as one."""

    marker_id = IMAGE
    video_marker_id = VIDEO
    frames_together = 2
    never_sampled = (IMAGE, VIDEO, PAD)
    writing = ProcessorText()

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        return (80, *[IMAGE] * image.width)

    def tokens_of_frames(self, frames: list[MediaRef]) -> list[tuple[int, ...]]:
        return [(number, VIDEO, VIDEO) for number in range((len(frames) + 1) // 2)]


class Still:
    """The same for images alone."""

    marker_id = IMAGE
    never_sampled = (IMAGE,)
    writing = ProcessorText()
    tokens_of = Tokens.tokens_of


def image(width: int) -> MediaRef:
    return MediaRef(sha256=f"{width:064x}", num_bytes=1, format="png", width=width, height=1)


def frames(count: int) -> list[MediaRef]:
    return [
        replace(image(20 + index), frame=Frame(index=index, count=count, time_s=index, rate=1.0))
        for index in range(count)
    ]


def test_frames_that_are_seen_together_stand_on_the_same_tokens():
    images = [*frames(3), image(1), *frames(2)]

    token_ids, spans = expanded([1, VIDEO, 2, IMAGE, VIDEO], images, Tokens())

    assert token_ids == (1, 0, VIDEO, VIDEO, 1, VIDEO, VIDEO, 2, 80, IMAGE, 0, VIDEO, VIDEO)
    places = [(1, 3), (1, 3), (4, 3), (8, 2), (10, 3), (10, 3)]
    assert [(span.start, span.length) for span in spans] == places
    assert [span.image for span in spans] == images
    assert [len(together) for _, together in seen_together(spans)] == [2, 1, 1, 2]
    assert media_spans(media_rows(spans)) == spans


@pytest.mark.parametrize("ids", [[IMAGE], [VIDEO, VIDEO], [IMAGE, VIDEO], []])
def test_other_places_than_videos_are_refused(ids):
    with pytest.raises(MediaProblem, match=f"1 images and {len(ids)} places"):
        expanded(ids, frames(2), Tokens())


def test_a_model_of_single_images_names_the_video(loader):
    reader = ImageReader(loader, Still())
    for refused in (lambda: reader.messages(chat(video())), lambda: reader.expand([], frames(2))):
        with pytest.raises(MediaProblem, match="the model reads single images alone; choose"):
            refused()


def test_a_run_that_reads_no_videos_says_why(loader):
    reader = ImageReader(loader, Tokens(), no_videos="this engine reads single images alone")

    with pytest.raises(MediaProblem, match="frames of a video; this engine reads single images"):
        reader.messages(chat(video()))
    assert reader.messages(chat({"type": "image", "image": FRAMES[0]}))


def test_a_trajectory_takes_frames_on_the_same_tokens_and_no_images_there():
    def row(*spans: MediaSpan) -> Trajectory:
        return Trajectory(
            uid=Uid(0, 0),
            token_ids=np.array([1, 5, 5, 2], np.int32),
            action_mask=np.array([False, False, False, True]),
            rollout_logprobs=np.zeros(1, np.float32),
            weight_version=np.zeros(1, np.int32),
            turns=(Turn(start=3, end=4),),
            media=spans,
        )

    first, second = (MediaSpan(start=1, length=2, image=one) for one in frames(2))
    row(first, second)
    with pytest.raises(ValueError, match="overlaps the one before"):
        row(*(replace(span, image=image(3)) for span in (first, second)))


def test_two_frames_at_other_times_are_not_the_same():
    one, other = frames(2)[1], frames(3)[1]

    assert one.identity != other.identity != replace(other, frame=None).identity
