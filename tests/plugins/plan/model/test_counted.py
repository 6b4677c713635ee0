"""Towers that are counted beside a text model with closed forms: those of LLaVA, Gemma 3 and InternVL."""

import json

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_lora import rlhf_model_adapters
from rlhf_plugin_plan.memory.role import MicroBatch, Role, trained_parameters
from rlhf_plugin_plan.memory.sharing import Sharing
from rlhf_plugin_plan.memory.training_memory import moments
from rlhf_plugin_plan.model.activations import Precision
from rlhf_plugin_plan.model.adapters import count
from rlhf_plugin_plan.model.shapes import shape_of
from rlhf_testing.errors import has_code

BF16 = Precision(parameters="bfloat16", compute="bfloat16")
CLIP = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
    "vocab_size": 32000,
}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
INTERN = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": [56, 56],
    "patch_size": [14, 14],
}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}
LLAVA_7B = {
    "model_type": "llava",
    "text_config": {"model_type": "llama", "vocab_size": 32064},
    "vision_config": CLIP,
    "vision_feature_layer": -2,
}
GEMMA_4B = {
    "model_type": "gemma3",
    "mm_tokens_per_image": 256,
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
    },
    "vision_config": SIGLIP | {"vision_use_head": False},
}
INTERNVL = {"model_type": "internvl", "text_config": QWEN, "vision_config": INTERN}
CONFIGS = {
    "llava": {"model_type": "llava", "vision_config": CLIP, "text_config": {"model_type": "llama"}},
    "llava 7b": LLAVA_7B,
    "llava, whole images": LLAVA_7B
    | {"vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
    "gemma 4b": GEMMA_4B,
    "gemma, with a head": GEMMA_4B | {"vision_config": SIGLIP},
    "gemma, head of its own": GEMMA_4B | {"tie_word_embeddings": False},
    "internvl": INTERNVL,
    "internvl, head of its own": INTERNVL | {"tie_word_embeddings": False},
    "internvl, all parts": INTERNVL
    | {
        "vision_config": INTERN
        | {
            "attention_bias": True,
            "use_qk_norm": True,
            "norm_type": "rms_norm",
            "use_mask_token": True,
            "use_mean_pooling": False,
        }
    },
    "internvl, qwen3": INTERNVL | {"text_config": QWEN | {"model_type": "qwen3", "head_dim": 16}},
}
"""As the hub has them: what a configuration class fills in is missing."""


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_transformers(name):
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    values = dict(CONFIGS[name])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    saved = json.loads(json.dumps(config.to_dict()))

    for shape in (shape_of(CONFIGS[name], name), shape_of(saved, name)):
        assert shape.measured is None
        beside = sum(p.numel() for p in model.model.multi_modal_projector.parameters())
        tower = sum(p.numel() for p in model.model.vision_tower.parameters())
        assert shape.projector_parameters == beside
        assert shape.tower_parameters == tower + beside
        assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_features_of_the_largest_image():
    """LLaVA 336 x 336 in patches of 14: 24 x 24; InternVL 448 x 448, halved: 16 x 16 for each of 13 tiles."""

    def features(name, **changes):
        vision = CONFIGS[name]["vision_config"] | {"num_hidden_layers": 2} | changes
        shape = shape_of(CONFIGS[name] | {"vision_config": vision}, name)
        return shape.vision.image_tokens(None)

    assert features("llava 7b") == 576
    assert features("llava, whole images") == 577
    assert features("gemma 4b") == 256
    assert features("internvl", image_size=[448, 448]) == 13 * 256


def test_a_projector_is_trained_beside_a_frozen_tower():
    shape = shape_of(INTERNVL, "internvl")

    whole, frozen = (_policy(shape, frozen_tower=it) for it in (False, True))

    text = shape.parameters - shape.tower_parameters
    assert trained_parameters(whole) == shape.parameters
    assert trained_parameters(frozen) == text + shape.projector_parameters


def test_a_frozen_tower_has_no_gradients_on_their_way():
    """Outside of layers are 500 x 48 embeddings, a norm of 48, and a tower with its projector; both types at once."""
    shape = shape_of(INTERNVL, "internvl")
    sharing = Sharing(stage=3, ranks=2, live_parameters=0, layerwise=True)
    batch = MicroBatch(tokens=6, actions=4, several=True)

    def on_their_way(*, frozen):
        role = _policy(shape, frozen_tower=frozen)
        return moments(role, sharing, batch)["end of a micro-batch"]["gradients on their way"]

    text = 500 * 48 + 48
    assert on_their_way(frozen=False) == (2 + 4) * (text + shape.tower_parameters)
    assert on_their_way(frozen=True) == (2 + 4) * (text + shape.projector_parameters)


def test_a_tower_is_counted_once_for_all_predictions():
    first, second = (shape_of(INTERNVL, "internvl") for _ in range(2))

    assert first.counted_tower is second.counted_tower


def _policy(shape, *, frozen_tower):
    return Role(
        name="policy",
        shape=shape,
        precision=BF16,
        trained=True,
        has_head=True,
        frozen_tower=frozen_tower,
    )


@pytest.mark.parametrize(
    ("changes", "message", "code"),
    [
        (
            {"vision_config": None},
            "vision_config is None; expected an object",
            "plan/vision-config",
        ),
        (
            {"vision_config": CLIP | {"hidden_size": 100}},
            "The hidden size .100. is not a multiple of the number of attention heads",
            "plan/refused-config",
        ),
        (
            {"vision_config": CLIP | {"patch_size": None}},
            "expected the config.json of a model of the family llava; Transformers cannot",
            "plan/refused-config",
        ),
        (
            {"text_config": {"model_type": "phimoe"}},
            "model_type 'phimoe' is not modeled",
            "plan/unknown-model",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(changes, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        shape_of(LLAVA_7B | changes, "llava")


@pytest.mark.parametrize(("config", "features"), [(LLAVA_7B, 576), (GEMMA_4B, 256)])
def test_a_run_is_planned_with_the_images_of_its_family(run, config, features):
    flags = ("--model.vision", "vlm", "--engine", "embedded", "--data.max_prompt_tokens", "800")

    def planned(*more):
        # Two layers fit, so that no remedies are looked for.
        short = {
            "text_config": config["text_config"] | {"num_hidden_layers": 2, "vocab_size": 32000},
            "vision_config": config["vision_config"] | {"num_hidden_layers": 2},
        }
        code, result = run(*flags, *more, model="qwen2.5-vl-3b", **config | short)
        assert code == 0
        return result

    whole = planned()
    assert whole["phases"] == planned("--image-tokens", str(features))["phases"]
    seconds = [
        {phase["name"]: phase["limit_s"] for phase in planned(*more)["phases"]}["train policy"]
        for more in (("--image-tokens", "0"), ("--actor.freeze_visual_encoder", "true"), ())
    ]
    assert seconds[0] < seconds[1] < seconds[2]
    notes = planned("--actor.freeze_language_model", "true")["notes"]
    assert set(notes) - set(whole["notes"]) == {
        "actor.freeze_language_model and actor.freeze_projector not modeled: planned as if all but a frozen visual "
        "encoder were trained"
    }


@pytest.mark.parametrize(
    ("config", "inside"),
    [(LLAVA_7B, 2 * 16 * (4 * 2 * 1024 + 2 * 5120)), (INTERNVL, 2 * 16 * (4 * 2 * 64 + 2 * 160))],
)
def test_factors_of_a_frozen_tower_are_not_trained(config, inside, tmp_path):
    """Of rank 16: ``in + out`` of four matrices of attention and two of the feed-forward part, in two layers."""
    (component,) = (each for each in rlhf_model_adapters() if each.name == "lora")
    options = component.config(rank=16)
    short = {
        key: value | {"num_hidden_layers": 2} if key.endswith("_config") else value
        for key, value in config.items()
    }
    (tmp_path / "config.json").write_text(json.dumps(short))

    seeing, frozen = (
        count(component.factory(options), "lora", tmp_path, BF16, frozen_tower=it)
        for it in (False, True)
    )

    assert seeing.trained - frozen.trained == inside
