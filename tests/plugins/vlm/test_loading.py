"""Processors, tokenizers and options that are another model's: named before anything is trained.

Families beyond the first ones have the marker ``matrix``.
"""

import json
import shutil

import pytest
from tests.plugins.vlm.vlm_material import SIZED, told
from transformers import CONFIG_MAPPING, Idefics2Config
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

import rlhf_plugin_vlm.families.gemma3n as gemma3n
from rlhf_core import ConfigError, MissingDependency
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.families import FAMILIES
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import (
    GEMMA_SIDE,
    LLAVA_SIDE,
    PATCH,
    QWEN,
    TILE,
    write_tiny_vision_model,
)
from rlhf_testing.tiny_vision_families import GLM_FAMILIES, PIXTRAL_PATCH, WRITTEN

OTHER_SIDE = {
    **{"llava": LLAVA_SIDE, "gemma3": GEMMA_SIDE},
    **dict.fromkeys(("internvl", "llava_next", "llava_onevision"), TILE),
}
"""Sides of images that a family's model reads, where all have one size."""
WORD = {
    **dict.fromkeys(QWEN, "<|image_pad|>"),
    "llava": "<image>",
    "gemma3": "<image_soft_token>",
    "internvl": "<IMG_CONTEXT>",
    **{name: family.marker for name, family in WRITTEN.items()},
    **dict.fromkeys(GLM_FAMILIES, "<|image|>"),
}
"""A word that stands for images."""


@pytest.fixture
def copied(model_path, tmp_path):
    """A copy of the model's small files, whose weights nobody reads."""
    folder = tmp_path / "model"
    shutil.copytree(model_path, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


def changed(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def tokens_of(folder, **options):
    return ImageTextModel(VlmConfig(**told(folder) | options)).image_tokens(
        str(folder), trust_remote_code=False
    )


def test_the_models_own_files_are_read(copied):
    assert tokens_of(copied).never_sampled


def test_a_processor_of_another_model_is_refused(family, copied):
    """One for the same kind of model, which makes other images than this model reads."""
    side = OTHER_SIDE.get(family)
    own = PIXTRAL_PATCH if family == "mistral3" else PATCH
    values, code = {"patch_size": own + 2}, "image/processor-differs"
    reason = f"has patch_size {own + 2}, and the model {own}"
    if family in ("idefics3", "smolvlm"):
        values = {"max_image_size": {"longest_edge": TILE + 2}}
        reason = f"has max_image_size {TILE + 2}, and the model {TILE}"
    if family == "gemma3n":
        values = {"size": {"height": 72, "width": 72}}
        reason = r"makes images of 72 x 72 pixels, .* features of the shape \(256, 3, 3\), and the model reads 4 "
    if side is not None:
        square, code = {"height": side + 8, "width": side + 8}, "image/size-differs"
        values = {"size": square, "crop_size": square} if "llava" in family else {"size": square}
        reason = (
            f"makes images of {side + 8} x {side + 8} pixels, and the model reads {side} x {side}"
        )
    changed(copied / "preprocessor_config.json", **values)

    with pytest.raises(ConfigError, match=reason, check=has_code(code)):
        tokens_of(copied)


def test_a_model_without_a_processor_is_refused(copied):
    (copied / "preprocessor_config.json").unlink()

    with pytest.raises(ConfigError, check=has_code("image/no-processor")):
        tokens_of(copied)


def test_a_tokenizer_of_another_model_is_refused(family, copied):
    """Its words for images are other tokens than the model reads as images."""
    file = copied / "tokenizer.json"
    word = WORD[family]
    words = json.loads(file.read_text())
    shown = json.dumps(words, ensure_ascii=False)
    file.write_text(shown.replace(json.dumps(word), json.dumps("<another>")))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = copied / name
        if path.is_file():
            path.write_text(path.read_text().replace(json.dumps(word), json.dumps("<another>")))

    with pytest.raises(ConfigError) as error:
        tokens_of(copied)

    assert f"its tokenizer has {word} as None" in str(error.value)


@pytest.mark.parametrize("options", [{"min_pixels": 64}, {"max_pixels": 4096}])
def test_limits_of_areas_are_for_families_that_see_them(family, copied, options):
    if family in SIZED:
        with pytest.raises(
            ConfigError,
            match=rf"--model\.vlm\.max_pixels: .* {SIZED[family]}",
            check=has_code("image/fixed-size"),
        ):
            tokens_of(copied, **options)
    else:
        tokens_of(copied, **options)


def test_crops_of_gemma_are_refused(family, copied):
    """Pan and scan: tokens of an image would depend on more than the model's one size."""
    if family != "gemma3":
        pytest.skip("other families have no such option")
    path = copied / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_pan_and_scan": True}))

    with pytest.raises(ConfigError, match=r"\(do_pan_and_scan\)", check=has_code("image/crops")):
        tokens_of(copied)


def test_a_model_whose_encoder_needs_a_package_says_which(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3n"}))
    monkeypatch.setattr(gemma3n.importlib.util, "find_spec", lambda name: None)

    with pytest.raises(
        MissingDependency,
        match=r"'rlhf-plugin-vlm\[timm\]'",
        check=has_code("plugin/missing-dependency"),
    ):
        tokens_of(tmp_path)


def test_a_config_that_cannot_be_read_and_unknown_families_are_refused(copied):
    Idefics2Config().save_pretrained(copied)
    with pytest.raises(
        ConfigError, match=r"idefics2.*gemma3", check=has_code("model/unknown-family")
    ):
        tokens_of(copied)

    (copied / "config.json").write_text("{")
    with pytest.raises(
        ConfigError, match=r"config\.json", check=has_code("model/unreadable-config")
    ):
        ImageTextModel(VlmConfig()).image_tokens(str(copied), trust_remote_code=False)


OTHERS = sorted(
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys() - FAMILIES.keys() - {"vision-encoder-decoder"}
)
"""Types of Transformers that read images, of which no family is here; an encoder-decoder has no configuration alone."""


@pytest.mark.parametrize("kind", OTHERS)
def test_every_other_type_that_reads_images_is_refused_by_its_name(tmp_path, kind):
    CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    name = json.loads((tmp_path / "config.json").read_text())["model_type"]

    with pytest.raises(
        ConfigError, match=f"family {name};.*gemma3", check=has_code("model/unknown-family")
    ):
        ImageTextModel(VlmConfig()).family(str(tmp_path), trust_remote_code=False)


def test_whether_images_are_cut_is_for_the_family_that_does_both(tmp_path):
    path = write_tiny_vision_model(tmp_path / "onevision", "llava_onevision")
    other = write_tiny_vision_model(tmp_path / "next", "llava_next")

    with pytest.raises(
        ConfigError, match=r"--model\.vlm\.tiled.*llava_next", check=has_code("image/not-tiled")
    ):
        tokens_of(other, tiled=False)
    changed(path / "config.json", vision_aspect_ratio="square")
    with pytest.raises(
        ConfigError,
        match="vision_aspect_ratio is square; expected anyres_max_",
        check=has_code("image/aspect-ratio"),
    ):
        tokens_of(path)
