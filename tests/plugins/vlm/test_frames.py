"""Frames of videos in Qwen's families: engine, trainer and Transformers' forward pass with ``videos=`` agree, and
frames matter by their pixels, their order and their times.

Families beyond the first ones have the marker ``matrix``.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.vlm.vlm_material import Stage, moved, policy_spec, train_batch
from tests.plugins.vlm.written_videos import Clips, clip, own_inputs, own_logits, videos_of
from transformers import AutoModelForImageTextToText

from rlhf_core.batch.media_columns import media_rows, media_spans
from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.media import MediaLoader, MediaOptions, references_in, seen_together
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.vision.pictures import PictureReader

FAMILIES = [
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    *(
        pytest.param(name, marks=pytest.mark.matrix)
        for name in ("qwen2_vl", "qwen3_vl_moe", "qwen3_5_moe")
    ),
]


@pytest.fixture(scope="module", params=FAMILIES)
def stage(request, tmp_path_factory, all_plugins) -> Stage:
    folder = tmp_path_factory.mktemp("videos") / request.param
    path = write_tiny_vision_model(folder, request.param, initializer_range=0.1)
    media = tmp_path_factory.mktemp("run") / "media"
    return Stage(path, media, all_plugins, policy_spec(path, media))


@pytest.fixture(scope="module")
def backend(stage):
    return stage.backend()


@pytest.fixture(scope="module")
def batch(stage, backend) -> TrajectoryColumns:
    """Episodes of three turns, with a video of an odd or even number of frames, an image, and another video."""
    return stage.play(backend, prompts=2, environment=Clips)


@pytest.fixture(scope="module")
def own(stage):
    return AutoModelForImageTextToText.from_pretrained(stage.path).eval()


def by_row(batch: TrajectoryColumns, values: np.ndarray) -> list[np.ndarray]:
    return np.split(values, batch.action_offsets[1:-1])


def test_the_engine_agrees_with_the_trainer(backend, batch):
    assert [len(videos_of(batch.media_of(row))) for row in range(len(batch))] == [2] * 4
    assert batch.num_media.tolist() == [8, 8, 9, 9]
    np.testing.assert_allclose(backend.logprobs(batch), batch.rollout_logprobs, atol=1e-4)


@pytest.mark.parametrize("share_prompts", [False, True])
def test_the_packed_trainer_agrees_with_transformers_on_each_row_alone(
    stage, batch, own, share_prompts
):
    config = TorchBackendConfig(device="cpu", share_prompts=share_prompts)

    packed = stage.backend(config).logprobs(batch)

    with torch.no_grad():
        alone = [own_logits(stage, own, batch, row).numpy() for row in range(len(batch))]
    np.testing.assert_allclose(packed, np.concatenate(alone), atol=1e-5)


def test_positions_are_those_of_transformers(stage, batch, own):
    reader = PictureReader(stage.family, stage.images.loader.store)
    for row in range(len(batch)):
        inputs = own_inputs(stage, batch, row)
        named = {name: value for name, value in inputs.items() if "pixel" not in name}

        expected, _ = own.base_model.get_rope_index(**named)

        found = reader.row(batch.tokens_of(row), batch.media_of(row), "a row")
        assert torch.equal(found.positions, expected[:, 0])


def test_one_update_is_that_of_a_plain_loop(stage, batch):
    model = AutoModelForImageTextToText.from_pretrained(stage.path).eval()
    advantages = torch.from_numpy(train_batch(batch).columns["advantages"])
    losses = []
    for row, part in enumerate(advantages.split(batch.num_actions.tolist())):
        logprobs = own_logits(stage, model, batch, row)
        losses.append(-(part * (logprobs - logprobs.detach()).exp()).sum())
    (torch.stack(losses).sum() / len(advantages)).backward()

    found = moved(stage.backend(), batch)

    plain = {name: weight.grad for name, weight in model.named_parameters()}
    assert max(float(part.abs().max()) for name, part in found.items() if ".visual." in name) > 1e-3
    for name, part in found.items():
        expected = torch.zeros_like(part) if plain[name] is None else plain[name]
        torch.testing.assert_close(part, expected, atol=1e-6, rtol=1e-3, msg=name)


def exchanged(batch: TrajectoryColumns, row: int, order: dict[int, int]) -> TrajectoryColumns:
    """The batch with frames of a row's first video in another order, each at the place of another."""
    spans, first = list(media_spans(batch.media)), int(batch.num_media[:row].sum())
    changed = list(spans)
    for index, other in order.items():
        here = spans[first + index]
        image = replace(spans[first + other].image, frame=here.image.frame)
        changed[first + index] = replace(here, image=image)
    return replace(batch, media=media_rows(changed))


@pytest.mark.parametrize("order", [{0: 1, 1: 0}, {1: 2, 2: 1}, {0: 2, 2: 0}])
def test_frames_matter_by_their_order_to_their_own_sequence_alone(backend, batch, order):
    before = by_row(batch, backend.logprobs(batch))

    after = by_row(batch, backend.logprobs(exchanged(batch, 2, order)))

    differences = [np.abs(new - old).max() for old, new in zip(before, after, strict=True)]
    assert differences[2] > 1e-4
    assert max(differences[:2] + differences[3:]) < 1e-6


def test_prompts_of_frames_in_another_order_are_other_prompts(batch):
    """Rows 2 and 3 are samples of one prompt."""
    end = batch.media_of(2)[3].end
    for order, is_same in (({}, True), ({0: 1, 1: 0}, False), ({1: 2, 2: 1}, False)):
        tokens = exchanged(batch, 2, order).tokens_with_images()

        assert (tokens[2][:end].tolist() == tokens[3][:end].tolist()) is is_same, order


def test_pixels_of_each_frame_matter(stage, backend, batch):
    before = by_row(batch, backend.logprobs(batch))
    loader = MediaLoader(MediaOptions(folder=str(stage.media)))
    for index, span in enumerate(media_spans(batch.media[: int(batch.num_media[0])])):
        size = (span.image.width, span.image.height)
        image = loader.take(clip(50 + index, 1, size)[0], stage.media)
        spans = list(media_spans(batch.media))
        spans[index] = replace(span, image=replace(image, frame=span.image.frame))

        after = by_row(batch, backend.logprobs(replace(batch, media=media_rows(spans))))

        assert np.abs(after[0] - before[0]).max() > 1e-4, index
        assert max(np.abs(after[row] - before[row]).max() for row in (1, 2, 3)) < 1e-6


def shown_at(stage: Stage, **times) -> tuple[list[int], torch.Tensor]:
    """Tokens and positions of a video at given times."""
    part = {"type": "video", "video": clip(1, 4, (16, 16)), **times}
    messages = stage.images.messages([{"role": "user", "content": [part]}])
    whole = stage.images.expand(stage.renderer.render(messages), references_in(messages))
    reader = PictureReader(stage.family, stage.images.loader.store)
    row = reader.row(whole.token_ids, whole.spans, "a row")
    assert [len(images) for _, images in seen_together(whole.spans)] == [2, 2]
    return list(whole.token_ids), row.positions


def test_another_rate_changes_positions_or_texts(stage):
    """tokens_per_second is 4: frames 2 and 3 stand 2 frames / rate * 4 positions behind the first ones."""
    name = stage.path.name
    slow, fast = shown_at(stage, fps=0.5), shown_at(stage, fps=2.0)
    if name.startswith("qwen3"):
        words = [stage.renderer.decode(tokens) for tokens, _ in (slow, fast)]
        # Frames 0 and 1 stand at 0 and 2 seconds, 2 and 3 at 4 and 6.
        assert "<1.0 seconds>" in words[0]
        assert "<5.0 seconds>" in words[0]
        assert "<0.2 seconds>" in words[1]  # 0.25, which rounds to even
        assert "<1.2 seconds>" in words[1]
        assert torch.equal(slow[1], fast[1])
        return
    assert slow[0] == fast[0]
    start = slow[0].index(stage.family.tokens.video_marker_id)
    of_time = [positions[0, start : start + 8].tolist() for _, positions in (slow, fast)]
    apart = {"qwen2_5_vl": (16, 4), "qwen2_vl": (1, 1)}[name]
    assert of_time == [[start] * 4 + [start + step] * 4 for step in apart]


def test_times_say_the_same_as_a_rate(stage):
    by_rate, by_times = shown_at(stage, fps=2.0), shown_at(stage, timestamps=[0, 0.5, 1, 1.5])

    assert by_rate[0] == by_times[0]
    assert torch.equal(by_rate[1], by_times[1])
