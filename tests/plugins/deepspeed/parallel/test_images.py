"""What every rank computes of images in a pass, and what is refused with them."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.plugins.vlm.vlm_material import OBJECTIVE, SGD, VLM, Stage

from rlhf_core import ConfigError
from rlhf_core.contracts import RoleSpec, VisionSpec
from rlhf_core.plugins import load
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_deepspeed.parallel.images import refuse_cut_images
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.ranks.images import PassImages
from rlhf_torch.rows.packed_rows import pack_rows


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    folder = tmp_path_factory.mktemp("seeing")
    spec = RoleSpec(
        role="policy",
        model_path=str(write_tiny_vision_model(folder / "model", "qwen3_vl")),
        objective=OBJECTIVE,
        optimizer=SGD,
        vision=VisionSpec(component=VLM, media_folder=str(folder / "media")),
    )
    return Stage(folder / "model", folder / "media", load(), spec)


def test_rows_without_images_get_one_that_changes_nothing_and_has_a_gradient_of_zero(stage):
    backend = stage.backend()
    lm = backend._lm
    images = PassImages(lm, SimpleNamespace(world_size=2))
    batch = stage.play(backend, prompts=3, samples=1)
    seeing = np.flatnonzero(batch.num_media > 0)
    assert lm.reads_at_once
    alone = pack_rows(batch, seeing, torch.device("cpu"), reader=images.reader)
    assert images.completed(alone) is alone

    plain = replace(alone, images=None)
    completed = images.completed(plain)
    tower = images.reader.family.tower(lm.model)
    arguments = (plain.input_ids, plain.position_ids, plain.layout)
    with torch.no_grad():
        expected = lm.hidden(*arguments)
    hidden = lm.hidden(*arguments, completed.images)
    torch.testing.assert_close(hidden.detach(), expected, atol=0, rtol=0)
    hidden.sum().backward()
    gradients = [parameter.grad for parameter in tower.parameters()]
    assert all(gradient is not None for gradient in gradients)
    assert max(float(gradient.abs().max()) for gradient in gradients) == 0


def test_a_rank_alone_computes_no_image_that_nobody_asked_for(stage):
    lm = stage.backend()._lm
    images = PassImages(lm, SimpleNamespace(world_size=1))

    packed = SimpleNamespace(images=None)

    assert images.completed(packed) is packed
    assert not lm.reads_at_once


@pytest.mark.parametrize(
    "options",
    [
        {"sequence_parallel": 2},
        {"tensor_parallel": 2, "zero_stage": 2},
        {"deep_compile": True, "zero_stage": 2, "device": "cuda"},
    ],
)
def test_what_cuts_sequences_or_layers_is_refused_by_name(options):
    with pytest.raises(
        ConfigError,
        match=rf"--backend\.deepspeed\.{next(iter(options))}",
        check=has_code("deepspeed/images"),
    ):
        refuse_cut_images(DeepSpeedConfig(**options))
    refuse_cut_images(DeepSpeedConfig(zero_stage=3))
