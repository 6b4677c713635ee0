"""Audits of models that see: pixels by other code than the audit's, right and with a fault."""

import dataclasses

import numpy as np
import pytest
import torch
from benchmarks import audit_pixels
from PIL import Image

from rlhf_core import ConfigError
from rlhf_plugin_lab.audit.case import Case
from rlhf_plugin_lab.audit.forward import Reading, logprobs_of
from rlhf_plugin_lab.audit.hypotheses import hypotheses_for
from rlhf_plugin_lab.audit.loading import load, never_sampled
from rlhf_plugin_lab.audit.precision import PRECISION
from rlhf_plugin_lab.audit.sequences import Recorded, with_images
from rlhf_plugin_lab.audit.verdict import judge
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import write_tiny_vision_model

SIDE = 24
"""Pixels of the side of an image, nine tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("seeing")
    write_tiny_vision_model(made / "model", initializer_range=0.2)
    draw = np.random.default_rng(0)
    for number in range(3):
        colors = draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(colors).save(made / f"{number}.png")
    return made


@pytest.fixture(scope="module")
def loaded(folder):
    return load(folder / "model")


def sequences_of(folder, loaded, eye):
    """Three sequences of an image each and eight actions, with the log-probs of a model that sees by an eye."""
    paths = [folder / f"{number}.png" for number in range(3)]
    found = []
    for number, path in enumerate(paths):
        draw = np.random.default_rng(number)
        text = draw.integers(5, 90, size=12)
        ids = np.concatenate([text[:2], [loaded.pixels.feature_id] * 9, text[2:]])
        mask = np.arange(len(ids)) >= 13
        seen = paths[(number + eye.step) % len(paths)]
        with torch.no_grad():
            rows = eye.logprobs(loaded.model, ids.tolist(), [audit_pixels.opened(seen)])
        full = np.full(len(ids), np.nan)
        for place in np.flatnonzero(mask):
            full[place] = float(rows[place - 1, ids[place]])
        found.append(
            Recorded(token_ids=ids, action_mask=mask, logprobs={"sampler": full}, images=(path,))
        )
    return found


def case_of(folder, loaded, **fault):
    eye = audit_pixels.eye_of(folder / "model", **fault)
    banned = never_sampled(loaded)
    plain = Reading(model=loaded.model, temperature=1.0, banned=banned, pixels=loaded.pixels)
    special = {"pad": 0, "bos": 1, "eos": 2}
    sequences = sequences_of(folder, loaded, eye)
    return Case(plain=plain, sequences=sequences, special=special, others={})


def test_the_plain_reading_sees_what_the_model_sees(folder, loaded):
    case = case_of(folder, loaded)

    verdict = judge("sampler", case, PRECISION, hypotheses_for(case))

    assert verdict.healthy, verdict
    assert verdict.gap < PRECISION / 10


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("another order: rows", {"order": sorted}),
        ("another order: reversed", {"order": lambda tiles: tiles[::-1]}),
        ("0 to 1, not normalized", {"mean": (0.0,) * 3, "deviation": (1.0,) * 3}),
        ("0 to 255, normalized", {"scale": 1.0}),
        ("deviations of 0.5", {"mean": (0.5,) * 3, "deviation": (0.5,) * 3}),
        ("red and blue", {"look": lambda picture: picture[..., ::-1]}),
        ("upside down", {"look": lambda picture: picture[::-1]}),
        ("left and right", {"look": lambda picture: picture[:, ::-1]}),
        ("a black image", {"look": np.zeros_like}),
        ("no image: embeddings", {"blind": True}),
        ("the image +1", {"step": 1}),
    ],
)
def test_what_a_model_saw_is_named(folder, loaded, words, fault):
    case = case_of(folder, loaded, **fault)

    verdict = judge("sampler", case, PRECISION, {"pixels": hypotheses_for(case)["pixels"]})

    assert verdict.cause == "pixels", verdict
    assert words in verdict.detail
    assert verdict.left < PRECISION < verdict.gap


def test_pixels_are_not_tried_for_a_gap_of_the_temperature(folder, loaded):
    case = case_of(folder, loaded)
    for each in case.sequences:
        hot = dataclasses.replace(case.plain, temperature=1.4)
        each.logprobs["sampler"][:] = logprobs_of(hot, each)

    verdict = judge("sampler", case, PRECISION, hypotheses_for(case))

    assert (verdict.cause, verdict.also) == ("temperature", ())


def test_an_image_that_is_gone_or_of_another_size_is_named(folder, loaded, tmp_path):
    (sequence, *_) = case_of(folder, loaded).sequences
    reading = Reading(model=loaded.model, temperature=1.0, pixels=loaded.pixels)
    Image.new("RGB", (SIDE, 2 * SIDE)).save(tmp_path / "tall.png")

    for name, words, code in (
        ("gone.png", "cannot be read", "image/unreadable"),
        ("tall.png", "expected 9 tokens .* makes 18", "lab/other-tokens-of-images"),
    ):
        other = dataclasses.replace(sequence, images=(tmp_path / name,))
        with pytest.raises(ConfigError, match=words, check=has_code(code)):
            logprobs_of(reading, other)


def test_an_image_outside_of_the_run_is_refused(tmp_path):
    line = '{"step": 1, "uid": "0.0.0.0", "images": [{"file": "media/../../secret.png"}]}\n'
    (tmp_path / "samples.jsonl").write_text(line)
    blank = Recorded(
        token_ids=np.zeros(2), action_mask=np.ones(2, bool), logprobs={}, uid="0.0.0.0"
    )

    with pytest.raises(ConfigError, match=r"secret\.png", check=has_code("lab/number-of-images")):
        with_images(tmp_path, 1, [blank])


def test_a_family_that_no_reading_knows_is_refused_by_name(tmp_path):
    write_tiny_vision_model(tmp_path, "llava")

    with pytest.raises(
        ConfigError, match=r"llava.*qwen2_vl", check=has_code("lab/model-of-images")
    ):
        load(tmp_path)
