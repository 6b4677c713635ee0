"""Later turns of conversations with images go on from the history in the cache, with the numbers of computing all anew.

Families beyond the first ones have the marker ``matrix``.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.deadlines import HANG_S
from tests.images import noisy
from tests.plugins.vlm.test_more_families import make_again
from tests.plugins.vlm.vlm_material import EVERY_FAMILY, turned
from tests.plugins.vlm.written_videos import clip

from rlhf_core.contracts import GenerationRequest, SamplingParams, Uid
from rlhf_core.media import MediaProblem, expanded
from rlhf_core.media.parts import references_in
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.models.vision_lm import VisionLM

ROUNDING = 1e-5
"""Bound of what a kept history and one computed anew may give apart, in nats."""
PAGE, WAVE = 64, 8
SIZE = (24, 16)
"""Width and height, in pixels, of images whose tokens are the same."""
BEHIND = tuple(range(40, 50))
"""Text behind an image."""


@pytest.fixture(scope="session", params=[*EVERY_FAMILY, "gemma4 larger"])
def family(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def model_path(tmp_path_factory, family) -> Path:
    name, *kinds = family.split()
    path = tmp_path_factory.mktemp("models") / name
    write_tiny_vision_model(path, name, initializer_range=0.1)
    for kind in kinds:
        make_again(path, kind)
    return path


@pytest.fixture
def passes(monkeypatch) -> list[tuple[int, int]]:
    """Tokens and images of each pass of the model."""
    found = []
    hidden = VisionLM.hidden

    def watched(self, ids, positions, layout, images=None):
        found.append((len(ids), len(images.pictures) if images else 0))
        return hidden(self, ids, positions, layout, images)

    monkeypatch.setattr(VisionLM, "hidden", watched)
    return found


@pytest.fixture
def write(stage):
    """Write a conversation on: texts as numbers of tokens, images, and frames of a video as a list."""

    def more(request: GenerationRequest, written, *parts, number: int, **options):
        ids = [*request.prompt_ids, *([] if written is None else written.token_ids.tolist())]
        spans = list(request.media)
        for part in parts:
            if isinstance(part, tuple):
                ids += part
                continue
            tokens, is_video = stage.family.tokens, isinstance(part, list)
            marker = tokens.video_marker_id if is_video else tokens.marker_id
            kind = "video" if is_video else "image"
            content = {"type": kind, kind: part, **({"fps": 2.0} if is_video else {})}
            shown = stage.images.messages([{"role": "user", "content": [content]}])
            own = expanded([marker], references_in(shown), tokens)
            spans += [replace(span, start=len(ids) + span.start) for span in own.spans]
            ids += own.token_ids
        sampling = SamplingParams(max_new_tokens=options.pop("max_new_tokens", 20))
        return GenerationRequest(
            uid=Uid(0, number),
            prompt_ids=tuple(ids),
            media=tuple(spans),
            seeds=options.pop("seeds", (1,)),
            sampling=sampling,
        )

    return more


@pytest.fixture
def first(stage, write):
    """Return a first request with two images; the first page ends within the second, unless the first has too many
    tokens. A model that reads one alone gets the second."""

    def request(*images, number: int = 0, **options) -> GenerationRequest:
        one, other = images or (turned(0, SIZE), turned(1, SIZE))
        parts = [tuple(range(30, 50)), *([one] if reads_several(stage) else [])]
        begun = write(empty(), None, *parts, number=number)
        until = PAGE - 2 - len(begun.prompt_ids)
        filled = tuple(30 + n % 9 for n in range(until))
        return write(begun, None, filled, other, BEHIND, number=number, **options)

    return request


def empty() -> GenerationRequest:
    nothing = SamplingParams(max_new_tokens=1)
    return GenerationRequest(uid=Uid(0, 0), prompt_ids=(), seeds=(1,), sampling=nothing)


@pytest.fixture
def play(stage, backend):
    """Play a conversation with kept histories, and with all computed anew; returns both results."""

    def both(episode, **options):
        async def playing(share: bool):
            config = EmbeddedEngineConfig(
                slots=8, decode="resident", share_prefixes=share, **options
            )
            engine = EmbeddedEngine(config)
            await engine.start(stage.engine_spec(), backend)
            try:
                found = await asyncio.wait_for(episode(engine), HANG_S)
                engine._batch.forget_histories()
                pool = engine._batch._pool
                assert pool.num_free == pool.num_pages - 1, "a page is lost"
            finally:
                await engine.close()
            return found

        return asyncio.run(playing(True)), asyncio.run(playing(False))

    return both


def same(own, others) -> None:
    for one, other in zip(own, others, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=ROUNDING)


def in_wave(count: int) -> int:
    return -(-count // WAVE) * WAVE


def known_of(engine, read: int) -> int:
    """Tokens that are kept of so many: all of a model that carries a state, else full pages."""
    return read if engine._batch._states is not None else read // PAGE * PAGE


def reads_several(stage) -> bool:
    """Whether a conversation may have more than one image."""
    check = getattr(stage.family.tokens, "check_count", lambda count: None)
    try:
        check(2)
    except MediaProblem:
        return False
    return True


def test_turns_with_new_images_and_without_compute_only_what_is_new(
    stage, play, first, write, passes
):
    new = (turned(2, SIZE),) if reads_several(stage) else ()

    async def episode(engine):
        request, written, own, sizes = first(seeds=(1, 2)), None, [], []
        for turn, parts in enumerate([(), ((41,), *new, BEHIND), ((42, 43),), ((44,), *new)]):
            if written is not None:
                read = len(request.prompt_ids) + len(written.token_ids) - 1
                request = write(request, written, *parts, number=turn, seeds=(3, 4))
                sizes.append(len(request.prompt_ids) - known_of(engine, read))
            passes.clear()
            written, second = await engine.generate(request)
            own += [written, second]
            sizes.append(passes[0])
        return own, sizes

    (own, sizes), (expected, anew) = play(episode)

    same(own, expected)
    for new_tokens, (computed, images), (all_tokens, all_images) in zip(
        sizes[1::2], sizes[2::2], anew[2::2], strict=True
    ):
        assert computed == in_wave(new_tokens) < all_tokens / 2
        assert images < all_images or not new


def test_the_same_text_with_another_image_is_computed_anew(stage, play, first, write, passes):
    """From the page on in which the image begins; a state is gone on from as a whole, or not at all."""
    images = [turned(0, SIZE), turned(1, SIZE)]
    others = [noisy(*SIZE).rotate(180), noisy(*SIZE).transpose(1)]

    async def episode(engine):
        request = first(*images)
        (written,) = await engine.generate(request)
        later = write(request, written, BEHIND, number=1)
        own, sizes = [written], []
        for place in range(len(request.media)):
            changed = list(images)
            changed[place if len(request.media) > 1 else 1] = others[place]
            swapped = replace(later, uid=Uid(0, 2 + place), media=first(*changed).media)
            assert swapped.prompt_ids == later.prompt_ids
            assert swapped.media != later.media
            passes.clear()
            own += await engine.generate(swapped)
            before = 0 if engine._batch._states else later.media[place].start // PAGE * PAGE
            sizes.append((passes[0][0], in_wave(len(later.prompt_ids) - before)))
        own += await engine.generate(later)
        return own, sizes

    (own, sizes), (expected, _) = play(episode)

    assert all(computed == new for computed, new in sizes)
    same(own, expected)
    logprobs = {tuple(one.logprobs.tolist()) for one in own[1:]}
    assert len(logprobs) == len(own) - 1


def test_each_continuation_sees_its_own_images(stage, play, first, write, passes):
    """Beside each other, after each other, and beside a conversation that is not known."""
    several = reads_several(stage)
    images = [(turned(n, (24, 8 + 8 * n)),) if several else () for n in range(3)]

    async def episode(engine):
        request = first()
        (written,) = await engine.generate(request)
        forks = [
            write(request, written, (50 + n,), *image, BEHIND[:n], number=1 + n, seeds=(n, 9))
            for n, image in enumerate(images)
        ]
        unknown = first(turned(5, SIZE), turned(6, SIZE), number=8)
        passes.clear()
        at_once = await asyncio.gather(*(engine.generate(one) for one in (*forks, unknown)))
        (computed, _), *_ = passes
        after = [await engine.generate(one) for one in forks]
        read = len(request.prompt_ids) + len(written.token_ids) - 1
        new = [in_wave(len(one.prompt_ids) - known_of(engine, read)) for one in forks]
        whole = in_wave(len(unknown.prompt_ids))
        return [one for each in (*at_once, *after) for one in each], computed, sum(new) + whole

    (own, computed, new), (expected, *_) = play(episode)

    assert computed == new
    same(own, expected)


def test_frames_of_a_video_are_gone_on_from_where_all_are_the_same(stage, play, write, passes):
    """Frames two and three are one picture, whose features depend on both."""
    if not hasattr(stage.family.tokens, "tokens_of_frames"):
        pytest.skip("the family reads no videos")

    async def episode(engine):
        frames = clip(0, 4, SIZE)
        request = write(empty(), None, tuple(range(30, 59)), frames, BEHIND * 4, number=0)
        (written,) = await engine.generate(request)
        later = write(request, written, (41,), [frames[2], frames[1]], BEHIND, number=1)
        other = write(
            empty(), None, tuple(range(30, 59)), [*frames[:3], frames[0]], BEHIND * 4, number=2
        )
        swapped = replace(
            later, uid=Uid(0, 3), media=(*other.media, *later.media[len(other.media) :])
        )
        own, sizes = [written], []
        for one in (later, swapped):
            passes.clear()
            own += await engine.generate(one)
            sizes.append(passes[0][0])
        read = len(request.prompt_ids) + len(written.token_ids) - 1
        return own, sizes, known_of(engine, read), len(later.prompt_ids)

    (own, sizes, known, length), (expected, *_) = play(episode)

    assert sizes[0] == in_wave(length - known) < in_wave(length)
    assert sizes[1] == in_wave(length)
    same(own, expected)


def test_conversations_that_gave_way_are_computed_anew(stage, play, first, write, monkeypatch):
    """With twelve pages most give way; all numbers stay right."""
    monkeypatch.setattr("rlhf_plugin_local.engine.embedded.cache_pages", lambda *_: 13)
    kept = []

    async def episode(engine):
        requests = [
            first(turned(n, SIZE), turned(n + 1, SIZE), number=n, max_new_tokens=8 + n)
            for n in range(5)
        ]
        own = []
        for turn in range(3):
            found = await asyncio.gather(*(engine.generate(one) for one in requests))
            own += [one for (one,) in found]
            requests = [
                write(request, one, (41 + turn,), number=n, max_new_tokens=8)
                for n, (request, (one,)) in enumerate(zip(requests, found, strict=True))
            ]
            kept.append(len(engine._batch._histories))
        return own

    own, expected = play(episode)

    same(own, expected)
    assert 0 < max(kept) < 15
