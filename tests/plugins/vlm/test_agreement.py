"""Engine, trainer and Transformers agree on sequences with images, and nothing trains blind.

Families beyond the first ones have the marker ``matrix``.
"""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from tests.plugins.vlm.vlm_material import in_tower, moved, turned

from rlhf_core import PluginError
from rlhf_core.batch.media_columns import media_rows, media_spans
from rlhf_core.contracts import ImageReaderSpec, TokenColumns, TrajectoryColumns
from rlhf_core.media import (
    MediaLimits,
    MediaLoader,
    MediaOptions,
    MediaProblem,
    MediaSpan,
    decode,
)
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_trainer.rollouts.images import open_image_reader


class Apart:
    """The trainer's weights without its module, as an engine in another process gets them."""

    def __init__(self, backend) -> None:
        self._backend = backend

    def module(self) -> None:
        return None

    def buckets(self):
        return self._backend.buckets()


def with_image(batch: TrajectoryColumns, index: int, image) -> TrajectoryColumns:
    """The batch with another image of the same size in the place of one."""
    spans = list(media_spans(batch.media))
    spans[index] = MediaSpan(start=spans[index].start, length=spans[index].length, image=image)
    return replace(batch, media=media_rows(spans))


def by_row(batch: TrajectoryColumns, values: np.ndarray) -> list[np.ndarray]:
    return np.split(values, batch.action_offsets[1:-1])


def test_episodes_have_images_in_the_prompt_and_in_later_turns(batch):
    first_action = [int(np.argmax(mask)) for mask in by_token(batch)]
    early = [
        any(span.start < first for span in batch.media_of(row))
        for row, first in enumerate(first_action)
    ]
    late = [
        any(span.start > first for span in batch.media_of(row))
        for row, first in enumerate(first_action)
    ]

    assert sum(early) >= 2
    assert sum(late) >= 4
    assert {len(batch.media_of(row)) for row in range(len(batch))} >= {2, 3}


def by_token(batch: TrajectoryColumns) -> list[np.ndarray]:
    return np.split(batch.action_mask, batch.token_offsets[1:-1])


def test_the_engine_agrees_with_the_trainer(backend, batch):
    np.testing.assert_allclose(backend.logprobs(batch), batch.rollout_logprobs, atol=1e-4)


@pytest.mark.parametrize("share_prompts", [False, True])
def test_the_trainer_agrees_with_transformers_unpacked(stage, batch, share_prompts):
    config = TorchBackendConfig(device="cpu", share_prompts=share_prompts)

    packed = stage.backend(config).logprobs(batch)

    np.testing.assert_allclose(packed, stage.own_logprobs(batch), atol=1e-5)


def test_every_cut_into_micro_batches_gives_the_same(stage, batch):
    whole = stage.backend(max_tokens_per_micro_batch=10**6).logprobs(batch)

    single = stage.backend(max_tokens_per_micro_batch=1).logprobs(batch)

    np.testing.assert_allclose(single, whole, atol=1e-5)


def test_gradients_do_not_depend_on_the_cut(stage, batch):
    whole = moved(stage.backend(max_tokens_per_micro_batch=10**6), batch)
    single = moved(stage.backend(max_tokens_per_micro_batch=1), batch)

    assert max(float(part.abs().max()) for name, part in whole.items() if in_tower(name)) > 1e-3
    for name, part in whole.items():
        torch.testing.assert_close(single[name], part, atol=1e-5, rtol=1e-3, msg=name)


def test_log_probs_change_when_the_pixels_do_and_only_those_of_that_sequence(stage, backend, batch):
    """Each image of the batch in turn is replaced by one with its pixels in another order."""
    before = by_row(batch, backend.logprobs(batch))
    loader = MediaLoader(MediaOptions(folder=str(stage.media)))
    row_of = np.repeat(np.arange(len(batch)), batch.num_media)
    columns = batch.tokens.read()
    for index, span in enumerate(media_spans(batch.media)):
        size = (span.image.width, span.image.height)
        # The same colors, shuffled: what stays is what a blind model would see.
        pixels = np.asarray(decode(loader.store.read(span.image))).reshape(-1, 3)
        shuffled = pixels[np.random.default_rng(0).permutation(len(pixels))]
        image = Image.frombytes("RGB", size, shuffled.tobytes())
        changed = with_image(batch, index, loader.take(image, stage.media))

        after = by_row(batch, backend.logprobs(changed))

        for row, (old, new) in enumerate(zip(before, after, strict=True)):
            difference = np.abs(new - old)
            if row != row_of[index]:
                assert difference.max() < 1e-6, (index, row)
                continue
            mask = columns.action_mask[columns.token_offsets[row] : columns.token_offsets[row + 1]]
            behind = np.flatnonzero(mask) > span.start
            assert difference[behind].max() > 1e-4, (index, row)
            assert difference[~behind].max(initial=0) < 1e-6


def test_no_token_of_an_image_is_ever_sampled_nor_has_a_probability(stage, backend, batch):
    family = backend._lm.reader.family
    never = set(family.tokens.never_sampled)

    assert never & set(batch.token_ids[batch.action_mask].tolist()) == set()
    hidden = torch.randn(5, backend._lm.hidden_size)
    logprobs = backend._lm.logits(hidden).log_softmax(-1)
    assert (logprobs[:, sorted(never)].exp() == 0).all()
    entropy = backend.statistics(batch, ["entropy"])["entropy"]
    assert np.isfinite(entropy).all()


def test_an_engine_with_weights_of_its_own_samples_the_same(stage, backend, batch):
    again = stage.play(backend, weights="copy")

    assert again.token_ids.tolist() == batch.token_ids.tolist()
    np.testing.assert_allclose(again.rollout_logprobs, batch.rollout_logprobs, atol=1e-5)


def test_an_engine_in_another_process_reads_model_and_images_itself(stage, backend, batch):
    again = stage.play(Apart(backend), weights="copy")

    assert again.token_ids.tolist() == batch.token_ids.tolist()
    np.testing.assert_allclose(again.rollout_logprobs, batch.rollout_logprobs, atol=1e-5)


def test_a_worker_takes_images_in_as_the_run_does(stage, all_plugins, tmp_path):
    options = MediaOptions(folder=str(tmp_path / "media"), limits=MediaLimits(max_images=1))
    told = ImageReaderSpec(
        component=stage.spec.vision.component,
        model_path=str(stage.path),
        options=options,
        key="seen",
    )
    reader = open_image_reader(pickle.loads(pickle.dumps(told)), all_plugins)

    taken = reader.loader.take(turned(1, (24, 16)), tmp_path)
    marker = reader.tokens.marker_id

    assert reader.key == "seen"
    assert (tmp_path / "media" / taken.file_name).is_file()
    assert reader.expand([5, marker], [taken]) == stage.images.expand([5, marker], [taken])
    with pytest.raises(MediaProblem, match="max_images allows 1"):
        reader.expand([marker, marker], [taken, taken])
    assert open_image_reader(None, all_plugins) is None


def test_tokens_do_not_depend_on_what_they_are_sampled_with(stage, backend, batch):
    again = stage.play(backend, prompts=4, samples=1)
    ours = batch.select(np.flatnonzero(batch.uid[:, 2] == 0))

    assert again.token_ids.tobytes() == ours.token_ids.tobytes()
    # With several threads the last bits of an image's features may depend on where they lie in memory.
    np.testing.assert_allclose(again.rollout_logprobs, ours.rollout_logprobs, atol=1e-6)


def test_an_image_that_was_expanded_twice_is_refused(stage, backend, batch):
    """The pads of a row's first image are there twice, as when both sides expand."""
    row = int(np.flatnonzero(batch.num_media)[0])
    one = batch.select(np.array([row]))
    span = one.media_of(0)[0]
    columns = one.tokens.read()
    ids = columns.token_ids
    twice = np.concatenate([ids[: span.end], ids[span.start : span.end], ids[span.end :]])
    mask = np.concatenate(
        [
            columns.action_mask[: span.end],
            np.zeros(span.length, bool),
            columns.action_mask[span.end :],
        ]
    )
    longer = MediaSpan(start=span.start, length=2 * span.length, image=span.image)
    for spans, code in (
        ((span,), "image/number-of-tokens"),
        ((longer,), "image/tokens-differ"),
    ):
        wrong = replace(
            one,
            num_tokens=one.num_tokens + span.length,
            num_media=np.array([1]),
            media=media_rows(spans),
            tokens=TokenColumns(
                token_ids=twice,
                action_mask=mask,
                token_offsets=np.array([0, len(twice)]),
                rollout_logprobs=columns.rollout_logprobs,
                weight_version=columns.weight_version,
                action_offsets=columns.action_offsets,
            ),
        )
        with pytest.raises(PluginError, match=r"expanded twice", check=has_code(code)):
            backend.logprobs(wrong)


def test_a_text_model_is_given_no_image(stage, batch, tmp_path):
    text = stage.backend(model_path=str(write_tiny_model(tmp_path / "text")), vision=None)

    with pytest.raises(PluginError, check=has_code("model/reads-text-alone")):
        text.logprobs(batch)


def test_turned_images_differ():
    assert turned(1, (8, 8)).tobytes() != turned(2, (8, 8)).tobytes()
