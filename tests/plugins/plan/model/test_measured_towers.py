"""Counted vision towers beside Transformers' own with numbers on a CPU, and beside closed forms."""

import copy
import json
from importlib.util import find_spec

import pytest
import torch
from tests.plugins.plan.model.test_measured import seeing_config
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText

from rlhf_plugin_plan.memory.role import MicroBatch, Role
from rlhf_plugin_plan.memory.sharing import Sharing
from rlhf_plugin_plan.memory.training_memory import moments
from rlhf_plugin_plan.model.activations import tower_bytes, tower_scoring_bytes
from rlhf_plugin_plan.model.measured import Measured
from rlhf_plugin_plan.model.measured_towers import widest
from rlhf_plugin_plan.model.precision import Precision
from rlhf_plugin_plan.model.shapes import shape_of
from rlhf_plugin_plan.model.without_numbers import without_numbers

FLOAT32 = Precision(parameters="float32", compute="float32")


def config_of(family):
    config = seeing_config(family)
    if family == "gemma3n":
        # Of images of the encoder's own size, 160 x 160 pixels, a feature has 32 x 32.
        config.vision_soft_tokens_per_image = 25
    return config


def values_of(family):
    return json.loads(config_of(family).to_json_string(use_diff=False))


def model_of(family, attention):
    config = copy.deepcopy(config_of(family))
    return AutoModelForImageTextToText.from_config(config, attn_implementation=attention).eval()


def images(family):
    """Return an image that no counted pass has read, and its number of features."""
    if family == "gemma3n":
        return {"pixel_values": torch.ones(3, 3, 160, 160)}, 75
    if family == "glm4v":
        # 12 by 20 patches of 4 x 4 pixels, three channels and two frames; 2 x 2 become a feature.
        grid = torch.tensor([[1, 12, 20]])
        return {"pixel_values": torch.ones(240, 96), "image_grid_thw": grid}, 60
    if family == "mistral3":
        # 5 by 3 features of 2 x 2 patches of 2 x 2 pixels.
        sizes = torch.tensor([[20, 12]])
        return {"pixel_values": torch.ones(1, 3, 20, 12), "image_sizes": sizes}, 15
    if family == "gemma4":
        # 32 by 40 patches of 4 x 4 pixels, of which 2 x 2 become a feature. Bytes of pooling grow with the pairs: those
        # of 320 features are as between the images of 64 and of 256 that a plan passes.
        columns, rows = torch.meshgrid(torch.arange(32), torch.arange(40), indexing="xy")
        places = torch.stack((columns.flatten(), rows.flatten()), dim=-1)[None]
        return {"pixel_values": torch.ones(1, 1280, 48), "image_position_ids": places}, 320
    if family == "llava_next":
        # Two tiles and the whole of 2 x 2 features; each of the tiles' two rows ends with one more.
        sizes = torch.tensor([[16, 32]])
        return {"pixel_values": torch.ones(1, 3, 3, 16, 16), "image_sizes": sizes}, 14
    if family == "smolvlm":
        return {"pixel_values": torch.ones(1, 3, 3, 16, 16)}, 12
    size = {"llava": 24, "gemma3": 32, "internvl": 16}[family]
    return {"pixel_values": torch.ones(2, 3, size, size)}, {"llava": 18, "gemma3": 32}.get(
        family, 8
    )


def read(model, inputs):
    return model.base_model.get_image_features(**inputs, return_dict=True).pooler_output


WITH_TIMM = pytest.param(
    "gemma3n", marks=pytest.mark.skipif(find_spec("timm") is None, reason="the encoder is timm's")
)


COUNTED = ["llava", "gemma3", "internvl", "glm4v", "mistral3", "gemma4", "smolvlm", WITH_TIMM]


@pytest.mark.parametrize("family", COUNTED)
def test_operations_are_those_that_torch_counts(family):
    inputs, features = images(family)
    model = model_of(family, "eager")

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        found = read(model, inputs)

    assert sum(part.shape[:-1].numel() for part in found) == features
    tower = Measured(values_of(family), family).tower
    assert tower.flops(features) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_smaller_image_has_as_many_tiles_as_its_part_of_the_largest_one():
    """LLaVA-NeXT here: 24 features of the largest image are 5 tiles, so that 14 need three, which have 12 alone."""
    inputs, features = images("llava_next")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        read(model_of("llava_next", "eager"), inputs)

    tower = Measured(values_of("llava_next"), "llava_next").tower

    assert tower.image_tokens(None) == 24
    assert tower.flops(features) == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert tower.flops(24) == pytest.approx(counter.get_total_flops() * 5 / 3, rel=0.01)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_operations_are_those_of_closed_forms(family):
    values = values_of(family)
    closed, counted = shape_of(values, family).tower, Measured(values, family).tower

    for features in (16, 144):
        assert counted.flops(features) == pytest.approx(closed.flops(features), rel=0.01)
    assert counted.flops(0) == 0


def saved_by(model, inputs):
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    found = {}

    def note(tensor):
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = read(model, inputs)
    del output
    return sum(t.untyped_storage().nbytes() for at, t in found.items() if at not in own)


@pytest.mark.parametrize("family", COUNTED)
def test_what_a_pass_keeps_is_what_torch_keeps(family):
    """Of LLaVA's tile of 10 states all but a copy of 9, which its first matmul behind the tower makes on a CPU."""
    inputs, features = images(family)

    saved = saved_by(model_of(family, "sdpa"), inputs)

    tower = Measured(values_of(family), family).tower
    assert tower_bytes(tower, features, FLOAT32) == pytest.approx(saved, rel=0.02)
    assert tower_bytes(tower, 0, FLOAT32) == 0


@pytest.mark.parametrize("family", ["smolvlm", "mistral3", "llava_onevision", "glm4v"])
def test_casts_of_weights_are_no_part_of_an_image(family):
    """Under autocast norms keep float32, matmuls keep bfloat16: between a pass in float32 and one in bfloat16."""
    tower = Measured(values_of(family), family).tower

    casts, half, whole = (
        tower.kept_bytes(64, Precision(parameters=parameters, compute=compute))
        for parameters, compute in (
            ("float32", "bfloat16"),
            ("bfloat16", "bfloat16"),
            ("float32", "float32"),
        )
    )

    assert half < casts < whole


def test_a_counted_tower_takes_memory_where_images_are():
    """Where it is frozen it keeps nothing, and is read all the same."""
    shape = shape_of(values_of("glm4v"), "glm4v")

    def found(*, image_tokens=60, **changes):
        role = Role(
            name="policy", shape=shape, precision=FLOAT32, trained=True, has_head=True, **changes
        )
        batch = MicroBatch(tokens=64, actions=32, several=False, image_tokens=image_tokens)
        parts = moments(role, Sharing(), batch)
        kept = parts["backward"].get("activations of the vision tower", 0)
        return kept, parts.get("reading images", {}).get("vision tower", 0)

    tower = shape.vision
    kept, wide = tower_bytes(tower, 60, FLOAT32), tower_scoring_bytes(tower, 60, FLOAT32)
    assert found() == (kept, wide)
    assert found(frozen_tower=True) == (0, wide)
    assert found(image_tokens=0) == (0, 0)


def test_a_model_is_counted_once_for_all_predictions():
    """Choices of a run's options are compared by hundreds of predictions."""
    first, second = (shape_of(values_of("smolvlm"), "config.json") for _ in range(2))

    assert first.measured is second.measured


def test_the_widest_point_of_a_pass_is_less_than_what_a_trained_one_keeps():
    tower = Measured(values_of("glm4v"), "glm4v").tower

    wide = tower_scoring_bytes(tower, 64, FLOAT32)

    # A layer's input, and its sum with what attention makes of it, stand side by side: D numbers of 256 patches each.
    config = seeing_config("glm4v").vision_config
    assert 256 * 4 * 2 * config.hidden_size < wide < tower_bytes(tower, 64, FLOAT32)


def test_a_tensor_is_live_until_the_last_of_its_views_ends():
    with without_numbers(FLOAT32), torch.no_grad(), widest() as live:
        first = torch.empty(4)
        view = first[:2]
        del first
        assert live.now == 16
        del view
        assert live.now == 0
        torch.empty(2)

    assert live.most == 16
