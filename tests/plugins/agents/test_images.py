"""Images of tasks and environments in episodes: their tokens line up, and a bad one is its environment's failure."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.images import noisy

from rlhf_core import Config, ConfigError, EnvironmentFailure, RolloutError
from rlhf_core.contracts import (
    Completion,
    Observation,
    RolloutContext,
    SamplingParams,
    StepResult,
    Stop,
    Task,
    Uid,
)
from rlhf_core.media import (
    Frame,
    ImageReader,
    MediaLimits,
    MediaLoader,
    MediaOptions,
    MediaRef,
    ProcessorText,
    collapsed,
    image_parts,
)
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.image_window import ImageWindow
from rlhf_plugin_agents.images import has_room_for_images
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_plugin_agents.single_turn import SingleTurn
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import tiny_vision_tokenizer

RENDERER = TokenizerRenderer(tiny_vision_tokenizer())
PAD = RENDERER.tokenizer.convert_tokens_to_ids("<|image_pad|>")
END = RENDERER.tokenizer.eos_token_id
WORDS = RENDERER.encode("abcdefgh")


class Pads:
    """As many pads as an image is wide."""

    marker_id = PAD
    never_sampled = (PAD,)
    writing = ProcessorText()

    def tokens_of(self, image: MediaRef) -> tuple[int, ...]:
        return (PAD,) * image.width


class Writer:
    """An engine that writes a few letters by seed, or what it is told."""

    def __init__(self, answer=None) -> None:
        self.answer = answer
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        return [self._complete(seed, request.sampling.max_new_tokens) for seed in request.seeds]

    def _complete(self, seed, most):
        tokens = self.answer or [*WORDS[: 1 + seed % 4], END]
        tokens = tokens[:most]
        count = len(tokens)
        return Completion(
            token_ids=np.array(tokens, dtype=np.int32),
            logprobs=np.zeros(count, dtype=np.float32),
            weight_version=np.zeros(count, dtype=np.int32),
            stop=Stop.EOS if tokens[-1] == END else Stop.LENGTH,
        )


class Shows:
    """Shows a list of observations, each a list of texts and of widths of images."""

    def __init__(self, observations) -> None:
        self.observations = [self._message(parts) for parts in observations]
        self.turn = 0

    async def reset(self, task, seed):
        return self.observations[0]

    async def step(self, action):
        self.turn += 1
        is_last = self.turn == len(self.observations)
        shown = Observation() if is_last else self.observations[self.turn]
        return StepResult(observation=shown, done=is_last)

    async def close(self): ...

    def _message(self, parts):
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image", "image": noisy(part, 4) if isinstance(part, int) else part}
            for part in parts
        ]
        return Observation(messages=({"role": "user", "content": content},))


def context(engine, folder, make=None, *, max_length=1000, images=True, max_images=16):
    limits = MediaLimits(max_images=max_images)
    reader = ImageReader(MediaLoader(MediaOptions(folder=str(folder), limits=limits)), Pads())
    return RolloutContext(
        engine=engine,
        renderer=RENDERER,
        sampling=SamplingParams(max_new_tokens=6),
        max_length=max_length,
        seed=lambda sample, turn: 5 * sample + 3 * turn,
        environment=None if make is None else lambda task: make(),
        images=reader if images else None,
    )


def play(observations, folder, *, engine=None, config=None, **options):
    def make():
        return Shows(observations)

    executor = MultiTurn(MultiTurnConfig(**(config or {})))
    told = context(engine or Writer(), folder, make, **options)
    (trajectory,) = asyncio.run(executor.run(Task(uid=Uid(0, 0)), [0], told))
    return trajectory


PARTS = st.lists(
    st.one_of(st.integers(2, 9), st.text(alphabet="xy <|image_pad|>", min_size=1, max_size=20)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=5), st.integers(60, 200))
def test_placeholders_masks_and_references_line_up(observations, max_length):
    """For any mix of texts and images over several turns, some of which are cut off for want of room."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = play(observations, Path(folder), max_length=max_length)
        except RolloutError as error:
            if "leaves no room for an action" not in str(error):
                raise
            return

    shown = [part for parts in observations for part in parts if isinstance(part, int)]
    widths = [span.image.width for span in row.media]
    assert widths == shown[: len(widths)]
    assert len(row.token_ids) <= max_length
    is_pad = row.token_ids == PAD
    assert int(is_pad.sum()) == sum(widths)
    for span in row.media:
        assert is_pad[span.start : span.end].all()
        assert span.length == span.image.width
        assert not row.action_mask[span.start : span.end].any()
    if len(widths) < len(shown):
        assert row.truncated or len(row.turns) == MultiTurnConfig().max_turns
    short = collapsed(row.token_ids.tolist(), row.media, PAD)
    assert short.count(PAD) == len(widths)


def test_what_was_sampled_stays_and_later_turns_append(tmp_path):
    engine = Writer()

    row = play([[3, "one"], ["two", 2, 4]], tmp_path, engine=engine)

    first, second = engine.requests
    assert [span.image.width for span in first.media] == [3]
    assert [span.image.width for span in second.media] == [3, 2, 4]
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert tuple(row.token_ids[: len(second.prompt_ids)].tolist()) == second.prompt_ids
    assert row.media == second.media


def test_a_prompt_of_data_has_its_images_in_a_single_turn(tmp_path):
    engine = Writer()
    told = context(engine, tmp_path)
    messages = told.images.messages([{"role": "user", "content": "x<image>"}], [noisy(5, 4)])
    (part,) = image_parts(messages)
    task = Task(
        uid=Uid(0, 0),
        prompt_ids=tuple(RENDERER.render(messages)),
        media=(MediaRef.of(part["media"]),),
    )

    rows = asyncio.run(SingleTurn(Config()).run(task, [0, 1], told))

    assert [row.media[0].length for row in rows] == [5, 5]
    assert engine.requests[0].media == rows[0].media
    with pytest.raises(
        RolloutError, match="0 images and 1 places", check=has_code("image/unusable")
    ):
        asyncio.run(SingleTurn(Config()).run(replace(task, media=()), [0], told))


@pytest.mark.parametrize(
    ("observations", "options", "reason"),
    [
        ([[b"nothing"]], {}, "reset of Shows: an image of the observation.*not a whole image"),
        ([["a"], [b""]], {}, "step of Shows: an image of the observation.*no bytes"),
        ([["a"], ["gone.png"]], {}, ""),
        ([[2, 2]], {"max_images": 1}, r"reset of Shows: .*2 images .*--data\.max_images"),
        ([[2]], {"images": False}, "reset of Shows: an image .*model reads text alone"),
    ],
)
def test_a_bad_image_is_the_environments_failure(tmp_path, observations, options, reason):
    if not reason:  # a name in a text is no image
        assert play(observations, tmp_path, **options).media == ()
        return
    with pytest.raises(RolloutError, match=reason, check=has_code("environment/unusable-image")):
        play(observations, tmp_path, **options)


@pytest.mark.parametrize("later", [[2, 2], [2, 3, 4, 5, 6], [2, b"nothing"]])
def test_one_image_too_many_in_a_later_turn_truncates_the_episode(tmp_path, later):
    """As an observation that is too long does; the images beyond the limit are not looked at."""
    engine = Writer()

    row = play([[2, 2], later], tmp_path, engine=engine, max_images=3)

    assert row.metrics["end/context"] == 1.0
    assert row.truncated
    assert len(engine.requests) == len(row.turns) == 1
    assert len(row.media) == 2


def test_a_bad_image_in_a_later_turn_may_cost_a_reward_instead(tmp_path):
    config = {"on_error": "value", "error_reward": -1.0}

    row = play([["a"], [b"nothing"]], tmp_path, config=config)

    assert row.total_reward == -1.0


def test_an_engine_that_samples_an_image_is_refused(tmp_path):
    with pytest.raises(RolloutError, match=f"token {PAD}", check=has_code("engine/sampled-image")):
        play([["a"]], tmp_path, engine=Writer([*WORDS[:1], PAD]))


def test_tokens_that_an_environment_expanded_itself_are_refused(tmp_path):
    """Its pads are markers without images: the run would expand them once more."""

    class Expands(Shows):
        async def reset(self, task, seed):
            return Observation(token_ids=(*WORDS, PAD, PAD))

    executor = MultiTurn(MultiTurnConfig())
    told = context(Writer(), tmp_path, lambda: Expands([["a"]]))
    with pytest.raises(
        RolloutError, match="0 images and 2 places", check=has_code("environment/unusable-image")
    ):
        asyncio.run(executor.run(Task(uid=Uid(0, 0)), [0], told))


def windowed(observations, folder, last, **options):
    engine = Writer()
    config = {"last_images": last, **options.pop("config", {})}
    executor = MultiTurn(MultiTurnConfig(**config))
    told = context(engine, folder, lambda: Shows(observations), **options)
    return engine, asyncio.run(executor.run(Task(uid=Uid(0, 0)), [0], told))


def test_a_turn_shows_the_last_images_and_a_text_for_older_ones(tmp_path):
    engine, rows = windowed([[3, "one"], [2], [4, 5]], tmp_path, 2)

    widths = [[span.image.width for span in request.media] for request in engine.requests]
    assert widths == [[3], [3, 2], [4, 5]]
    mark = RENDERER.encode("[earlier image]")
    last = list(engine.requests[-1].prompt_ids)
    marks = [i for i in range(len(last)) if last[i : i + len(mark)] == mark]
    assert len(marks) == 2
    assert last.count(PAD) == 9
    # The first two turns are one row; the third reads other tokens where images stood, and is a row of its own.
    assert [len(row.turns) for row in rows] == [2, 1]
    assert [[span.image.width for span in row.media] for row in rows] == [[3, 2], [4, 5]]
    for row, request in zip(rows, (engine.requests[1], engine.requests[2]), strict=True):
        assert tuple(row.token_ids[: len(request.prompt_ids)].tolist()) == request.prompt_ids
    assert rows[0].metrics["graph/forks"] == 1


def test_each_sampled_token_is_an_action_once_and_later_turns_read_it(tmp_path):
    observations = [[3], [2], [4], ["no image"], [5]]
    engine, rows = windowed(observations, tmp_path, 1)

    sampled = [(*WORDS[: 1 + (3 * turn) % 4], END) for turn in range(5)]
    actions = [
        tuple(row.token_ids[turn.start : turn.end].tolist()) for row in rows for turn in row.turns
    ]
    assert sorted(actions) == sorted(sampled)
    # A turn without a new image goes on where the one before it ended.
    assert [len(row.turns) for row in rows] == [1, 1, 2, 1]
    whole = tuple(engine.requests[-1].prompt_ids)
    at = 0
    for answer in sampled[:-1]:
        starts = [i for i in range(at, len(whole)) if whole[i : i + len(answer)] == answer]
        assert starts, "an earlier answer is missing"
        at = starts[0]


def test_a_window_that_holds_all_images_changes_nothing(tmp_path):
    observations = [[3, "one"], [2], [4, 5]]

    _, rows = windowed(observations, tmp_path, 4)

    (row,) = rows
    plain = play(observations, tmp_path)
    np.testing.assert_array_equal(row.token_ids, plain.token_ids)
    assert row.media == plain.media


def test_the_window_bounds_the_images_of_a_sequence(tmp_path):
    _, rows = windowed([[2], [3], [4], [5]], tmp_path, 1, max_images=1)

    assert sum(len(row.turns) for row in rows) == 4


def test_edges_of_an_older_image_go_with_it():
    """Edges 1 and 2 stand around markers 9; a word 7 stays."""
    window = ImageWindow(last=1, mark=(5, 6), marker_id=9, beside=frozenset({1, 2, 9}))

    tokens, images = window.applied([7, 1, 9, 2, 1, 9, 2, 7, 1, 9, 2], ["a", "b", "c"])

    assert tokens == [7, 5, 6, 5, 6, 7, 1, 9, 2]
    assert images == ["c"]


def test_frames_of_a_video_take_room_one_by_one(tmp_path):
    parts = [{"type": "video", "video": [noisy()] * 3}, {"type": "image", "image": noisy()}]
    observation = Observation(messages=({"role": "user", "content": parts},))
    told = context(None, tmp_path, max_images=6)

    assert has_room_for_images(2, observation, told)
    assert not has_room_for_images(3, observation, told)


def test_a_window_refuses_frames_of_a_video():
    window = ImageWindow(last=1, mark=(5, 6), marker_id=9, beside=frozenset({1, 2, 9}))
    image = MediaRef(sha256="0" * 64, num_bytes=1, format="png", width=2, height=2)
    window.check([image])

    with pytest.raises(
        EnvironmentFailure, match="last_images 1", check=has_code("environment/frames-in-window")
    ):
        window.check([replace(image, frame=Frame(index=0, count=2, time_s=0.0, rate=1.0))])


def test_a_window_without_images_is_refused_by_its_option(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"last_images 2.*--model\.vision",
        check=has_code("config/no-images-to-leave-out"),
    ):
        windowed([["text"]], tmp_path, 2, images=False)
    with pytest.raises(
        ConfigError,
        match=r"last_images 5.*data\.max_images 4",
        check=has_code("config/window-too-large"),
    ):
        windowed([[2]], tmp_path, 5, max_images=4)
    with pytest.raises(ValueError, match="expected last_images"):
        MultiTurnConfig(older_image="gone")
