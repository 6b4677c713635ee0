"""Vision towers: parameters as Transformers counts them, operations and bytes by hand."""

import json
from dataclasses import replace

import pytest

from rlhf_plugin_plan.memory.role import MicroBatch, Role, trained_parameters
from rlhf_plugin_plan.memory.training_memory import Sharing, moments, role_memory
from rlhf_plugin_plan.model.activations import Precision, tower_bytes, tower_scoring_bytes
from rlhf_plugin_plan.model.shapes import shape_of
from rlhf_plugin_plan.model.towers import TowerShape
from rlhf_plugin_plan.seconds.work import PassTokens, forward_flops, training_flops

BF16 = Precision(parameters="bfloat16", compute="bfloat16")
TOWER = TowerShape(
    hidden=2,
    layers=3,
    heads=1,
    ffn=5,
    patch_inputs=6,
    patch_side=7,
    merge=2,
    out=4,
    full_layers=1,
    window=4,
)


def test_parameters_are_those_of_transformers(published):
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    values = dict(published["qwen2.5-vl-3b"]["config"])
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(
            AutoConfig.for_model(values.pop("model_type"), **values)
        )
    shape = shape_of(published["qwen2.5-vl-3b"]["config"], "3b")

    assert shape.tower.parameters == sum(p.numel() for p in model.model.visual.parameters())
    assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_parameters_of_qwen3_vl_are_those_of_transformers():
    """Of a whole configuration with all of its parts: early mergers, a table of positions, layer norms."""
    import torch
    from transformers import AutoModelForImageTextToText, Qwen3VLConfig

    for tied in (False, True):
        config = Qwen3VLConfig(tie_word_embeddings=tied)
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
        shape = shape_of(json.loads(json.dumps(config.to_dict())), "4b")

        assert shape.tower.parameters == sum(p.numel() for p in model.model.visual.parameters())
        assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_parameters_of_qwen2_vl_are_those_of_transformers():
    """Whose tower has its width under another name, and no bias of its first matrix."""
    import torch
    from transformers import AutoModelForImageTextToText, Qwen2VLConfig

    for tied in (False, True):
        config = Qwen2VLConfig(tie_word_embeddings=tied, vision_config={"hidden_size": 8192})
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
        shape = shape_of(json.loads(json.dumps(config.to_dict())), "72b")

        assert shape.tower.parameters == sum(p.numel() for p in model.model.visual.parameters())
        assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_operations_and_bytes_of_a_tower_without_a_gate_by_hand():
    tower = replace(TOWER, gated=False, full_layers=3, early_mergers=1)

    # As below, with 3 (4 x 4 + 2 x 2 x 5) = 108 weights of layers, two mergers, and all layers over the whole image.
    assert tower.flops(2) == 2 * (108 + 12) * 8 + 2 * 2 * 96 * 2 + 4 * 2 * 3 * 8 * 8
    # A layer: as below, but feed-forward 2 x 2 x 5. Two mergers.
    assert tower_bytes(tower, 1, BF16) == 4 * (3 * (32 + 16 + 20 + 12) + 2 * 28)
    assert tower_scoring_bytes(tower, 1, BF16) == 4 * (20 + 12)


def test_a_saved_config_has_the_same_shape(published):
    """Transformers writes the text model into ``text_config``, the hub's files have it beside the tower."""
    from transformers import AutoConfig

    values = dict(published["qwen2.5-vl-7b"]["config"])
    saved = AutoConfig.for_model(values.pop("model_type"), **values).to_dict()

    assert shape_of(json.loads(json.dumps(saved)), "saved") == shape_of(
        published["qwen2.5-vl-7b"]["config"], "hub"
    )


def test_operations_of_an_image_by_hand():
    # 2 features are 8 patches. Weights: 3 (4 x 4 + 3 x 2 x 5) = 138 of layers, 6 x 2 of the first matrix, for 8
    # patches; 8 (8 + 4) = 96 of the merger for 2 features. Attention: 4 x 2 for 8 patches with 8, and twice 8 with 4.
    assert TOWER.flops(2) == 2 * (138 + 12) * 8 + 2 * 96 * 2 + 4 * 2 * (8 * 8 + 2 * 8 * 4)


def test_an_area_is_as_many_tokens_as_it_has_merged_patches():
    assert TOWER.image_tokens(14 * 14 * 6) == 6
    assert TOWER.image_tokens(1) == 1


@pytest.fixture
def seeing(pencil):
    return replace(pencil, tower=TOWER)


def test_a_frozen_tower_is_read_and_not_trained(pencil, seeing):
    work = PassTokens(tokens=10, pairs=20, head_tokens=5, images=3, image_tokens=2)
    images = 3 * TOWER.flops(2)

    assert forward_flops(seeing, work) == forward_flops(pencil, work) + images
    trained, frozen = (training_flops(seeing, work, frozen_tower=it) for it in (False, True))
    assert trained == training_flops(pencil, work) + 3 * images
    assert frozen == training_flops(pencil, work) + images


def test_a_frozen_tower_has_weights_alone(pencil, seeing):
    batch = MicroBatch(tokens=6, actions=4, several=True, image_tokens=2)

    def role(shape, **changes):
        return Role(
            name="policy", shape=shape, precision=BF16, trained=True, has_head=True, **changes
        )

    plain = role_memory(role(pencil), Sharing(), batch)
    frozen = role_memory(role(seeing, frozen_tower=True), Sharing(), batch)
    trained = role_memory(role(seeing), Sharing(), batch)

    size = TOWER.parameters
    assert trained_parameters(role(seeing, frozen_tower=True)) == pencil.parameters
    assert trained_parameters(role(seeing)) == pencil.parameters + size
    assert frozen.resident_bytes - plain.resident_bytes == 2 * size
    # weights 2, float32 copy 4, Adam 8
    assert trained.resident_bytes - plain.resident_bytes == (2 + 4 + 8) * size
    kept = [
        moments(role(seeing, frozen_tower=it), Sharing(), batch)["backward"].get(
            "activations of the vision tower", 0
        )
        for it in (False, True)
    ]
    assert kept == [tower_bytes(TOWER, 2, BF16), 0]


def test_bytes_of_a_patch_by_hand():
    # A layer: norms 2 x (4 + 2 + 2) x 2, attention 2 x 4 x 2, feed-forward 2 x 4 x 5, statistics 4 + 8. The merger:
    # (8 + 3 x 2) x 2. One feature is 4 patches.
    assert tower_bytes(TOWER, 1, BF16) == 4 * (3 * (32 + 16 + 40 + 12) + 28)
    # Widest without gradients: 3 x 2 x 5 beside (2 x 2 + 2) x 2.
    assert tower_scoring_bytes(TOWER, 1, BF16) == 4 * (30 + 12)


def test_image_tokens_are_those_of_the_largest_image_and_may_be_given(run):
    flags = ("--model.vision", "vlm", "--engine", "embedded", "--model.vlm.max_pixels", "50176")

    def seconds(*more, **options):
        code, result = run(*flags, *more, model="qwen2.5-vl-3b")
        assert code in (0, 1)
        return {phase["name"]: phase["limit_s"] for phase in result["phases"]}["train policy"]

    # 50176 pixels are 64 squares of 28 x 28
    assert seconds() == seconds("--image-tokens", "64")
    assert seconds("--image-tokens", "128") > seconds() > seconds("--image-tokens", "0")
    assert seconds("--actor.freeze_visual_encoder", "true") < seconds()
