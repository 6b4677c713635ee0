"""Families whose other tests are in the full matrix: what is sampled has the numbers of Transformers, and sees."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.images import noisy
from tests.plugins.vlm.vlm_material import (
    IN_MATRIX,
    Pictures,
    Stage,
    families,
    moved,
    own_distribution,
    policy_spec,
    told,
    train_batch,
)
from transformers import AutoConfig, AutoModelForImageTextToText, Gemma4AudioConfig

from rlhf_core import ConfigError
from rlhf_core.batch.media_columns import media_rows, media_spans
from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.media import (
    ImageReader,
    MediaLoader,
    MediaOptions,
    MediaProblem,
    MediaSpan,
    decode,
    references_in,
)
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.families import FAMILIES
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import MORE_VISION_FAMILIES, VISION_FAMILIES, write_tiny_vision_model
from rlhf_torch.models.layers import decoder_layers
from rlhf_torch.vision.pictures import PictureReader

PAGE = Path(__file__).parents[3] / "docs" / "images.md"


def test_the_page_has_the_families_that_are_read_and_tried():
    section = PAGE.read_text().split("## Families\n")[1].split("### ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = re.findall(r"`(\w+)`", " ".join(rows))[1:]

    assert sorted(names) == sorted(FAMILIES) == sorted((*VISION_FAMILIES, *MORE_VISION_FAMILIES))


def shuffled(stage: Stage, batch: TrajectoryColumns) -> TrajectoryColumns:
    """The batch with the pixels of each image in another order."""
    loader = MediaLoader(MediaOptions(folder=str(stage.media)))
    spans = []
    for span in media_spans(batch.media):
        pixels = np.asarray(decode(loader.store.read(span.image))).reshape(-1, 3)
        mixed = pixels[np.random.default_rng(0).permutation(len(pixels))]
        image = Image.frombytes("RGB", (span.image.width, span.image.height), mixed.tobytes())
        taken = loader.take(image, stage.media)
        spans.append(MediaSpan(start=span.start, length=span.length, image=taken))
    return replace(batch, media=media_rows(spans))


@pytest.mark.parametrize("family", families(IN_MATRIX))
def test_what_is_sampled_has_the_numbers_of_transformers_and_sees(tmp_path, all_plugins, family):
    path = write_tiny_vision_model(tmp_path / "model", family, initializer_range=0.1)
    media = Path(tmp_path / "run" / "media")
    stage = Stage(path, media, all_plugins, policy_spec(path, media))
    backend = stage.backend()

    batch = stage.play(backend, prompts=2, samples=1)

    logprobs = backend.logprobs(batch)
    np.testing.assert_allclose(logprobs, batch.rollout_logprobs, atol=1e-4)
    np.testing.assert_allclose(logprobs, stage.own_logprobs(batch), atol=1e-5)
    assert batch.num_media.sum() >= 2
    assert np.abs(backend.logprobs(shuffled(stage, batch)) - logprobs).max() > 1e-4


def plain_gradients(stage: Stage, batch: TrajectoryColumns) -> dict[str, torch.Tensor]:
    """Gradients of the first update's loss, by a loop over rows that the model of Transformers reads one by one."""
    model = AutoModelForImageTextToText.from_pretrained(stage.path).eval()
    advantages = torch.from_numpy(train_batch(batch).columns["advantages"])
    losses = []
    for row, part in enumerate(advantages.split(batch.num_actions.tolist())):
        actions = torch.from_numpy(batch.actions_of(row).astype(np.int64))
        found = own_distribution(stage, model, batch, row, learns=True)
        logprobs = found.gather(1, actions[:, None])[:, 0]
        losses.append(-(part * (logprobs - logprobs.detach()).exp()).sum())
    (torch.stack(losses).sum() / len(advantages)).backward()
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad
        for name, weight in model.named_parameters()
    }


LARGER = {
    **{"use_bidirectional_attention": "vision", "attention_k_eq_v": True},
    **{"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    **{"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
}
"""Entries of the larger Gemma 4: tokens of images look ahead in layers with a window, no layer reads tokens itself, and
some have experts."""
HEARING = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 32},
    "subsampling_conv_channels": [4, 4],
}
"""Part of the smaller ones that hears, which no run uses."""


def make_again(path: Path, kind: str) -> None:
    """Make a tiny Gemma 4 one of another kind."""
    config = AutoConfig.from_pretrained(path)
    if kind == "hearing":
        config.audio_config = Gemma4AudioConfig(**HEARING)
    else:
        for name, value in LARGER.items():
            setattr(config.text_config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        places = model.base_model.vision_tower.patch_embedder.position_embedding_table
        torch.nn.init.normal_(places, std=0.1)
    model.save_pretrained(path)


@pytest.mark.parametrize(
    "family",
    [
        *("llava_onevision", "gemma4", "gemma4 larger", "glm4v_moe"),
        *families(["gemma3n"]),
        pytest.param("gemma4 hearing", marks=pytest.mark.slow),
    ],
)
def test_an_update_is_that_of_a_plain_loop(tmp_path, all_plugins, family):
    name, *kinds = family.split()
    path = write_tiny_vision_model(tmp_path / "model", name, initializer_range=0.1)
    for kind in kinds:
        make_again(path, kind)
    media = tmp_path / "run" / "media"
    stage = Stage(path, media, all_plugins, policy_spec(path, media))
    batch = stage.play(stage.backend(), prompts=3, samples=2)
    expected = plain_gradients(stage, batch)
    own = stage.own_logprobs(batch)
    np.testing.assert_allclose(batch.rollout_logprobs, own, atol=1e-4)
    np.testing.assert_allclose(stage.backend().logprobs(batch), own, atol=1e-5)

    steps = moved(stage.backend(), batch)

    assert steps.keys() == expected.keys()
    for name, step in steps.items():
        torch.testing.assert_close(step, expected[name], atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize(
    "family",
    families(
        ["mistral3", "smolvlm", "llava_next", "llava_onevision", "glm4v", "gemma3n", "gemma4"]
    ),
)
def test_features_are_the_same_alone_and_with_those_of_others(tmp_path, family):
    """As on a GPU, where all pictures of a row are computed at once; Transformers cannot compute one feature of
    Mistral 3 alone."""
    path = write_tiny_vision_model(tmp_path / "model", family, initializer_range=0.1)
    made = ImageTextModel(VlmConfig(**told(path))).family(str(path), trust_remote_code=False)
    model, _ = made.load(dtype=torch.float32, output_loading_info=True)
    pictures = [made.picture(noisy(*size)) for size in ((3, 4), (16, 9), (9, 40))]

    with torch.no_grad():
        together = made.features(model, pictures).embeddings
        alone = torch.cat([made.features(model, [one]).embeddings for one in pictures])

    assert (pictures[0].num_features == 1) == (family in ("mistral3", "glm4v"))
    assert len(together) == sum(one.num_features for one in pictures)
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)


def test_a_configuration_with_the_text_model_beside_the_tower_is_read(tmp_path):
    """As the files of Qwen2-VL on the hub have it, with sizes of images under older names."""
    path = write_tiny_vision_model(tmp_path / "model", "qwen2_vl")
    file, sizes = path / "config.json", path / "preprocessor_config.json"
    whole, image = json.loads(file.read_text()), json.loads(sizes.read_text())
    area = image.pop("size")
    text = whole.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope["rope_theta"], "model_type": "qwen2_vl"}
    text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    older = {"in_chans": 3, "spatial_patch_size": whole["vision_config"]["patch_size"]}
    before = read(path)

    file.write_text(json.dumps(text | whole | {"vision_config": whole["vision_config"] | older}))
    named = {"min_pixels": area["shortest_edge"], "max_pixels": area["longest_edge"]}
    sizes.write_text(json.dumps(image | named))

    assert "text_config" not in json.loads(file.read_text())
    assert read(path) == before


def read(path: Path) -> tuple[dict, tuple[int, ...]]:
    """What a model and its family are made of: the text model's entries, and the tokens of an image."""
    family = ImageTextModel(VlmConfig()).family(str(path), trust_remote_code=False)
    (image,) = references_in(
        MediaLoader(MediaOptions()).messages(
            [{"role": "user", "content": [{"type": "image", "image": noisy(40, 24)}]}]
        )
    )
    text = AutoConfig.from_pretrained(path).get_text_config().to_dict()
    kept = ("hidden_size", "num_hidden_layers", "vocab_size")
    rope = {name: text["rope_parameters"][name] for name in ("rope_type", "mrope_section")}
    return {name: text[name] for name in kept} | rope, family.tokens.tokens_of(image)


def test_the_layers_that_are_recomputed_are_those_of_the_text(tmp_path):
    """The tower has as many layers, and is found first."""
    path = write_tiny_vision_model(tmp_path / "model", "smolvlm")
    model = AutoModelForImageTextToText.from_pretrained(path)

    layers = decoder_layers(model)

    assert layers[0] is model.model.text_model.layers[0]
    assert len(model.model.vision_model.encoder.layers) == len(layers)


def test_images_without_tiles_have_the_numbers_of_transformers(tmp_path, all_plugins):
    """LLaVA-OneVision, as it sees several images of a conversation; a row with one image is seen so, too."""
    path = write_tiny_vision_model(tmp_path / "model", "llava_onevision", initializer_range=0.1)
    media = tmp_path / "run" / "media"
    spec = policy_spec(path, media)
    whole = replace(spec.vision.component, options={"tiled": False})
    spec = replace(spec, vision=replace(spec.vision, component=whole))
    stage = Stage(path, media, all_plugins, spec)
    backend = stage.backend()

    batch = stage.play(backend, prompts=3, environment=lambda: Pictures(turns=2))

    logprobs = backend.logprobs(batch)
    np.testing.assert_allclose(logprobs, batch.rollout_logprobs, atol=1e-4)
    np.testing.assert_allclose(logprobs, stage.own_logprobs(batch), atol=1e-5)
    assert set(batch.num_media.tolist()) == {1, 4}
    assert np.abs(backend.logprobs(shuffled(stage, batch)) - logprobs).max() > 1e-4
    made = ImageTextModel(VlmConfig(tiled=False)).family(str(path), trust_remote_code=False)
    model, _ = made.load(dtype=torch.float32, output_loading_info=True)
    pictures = [made.picture(noisy(*size)) for size in ((3, 4), (16, 9), (9, 40))]
    together = made.features(model, pictures).embeddings
    alone = torch.cat([made.features(model, [one]).embeddings for one in pictures])
    assert len(together) == 3 * 17
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)


def test_a_second_image_is_refused_where_a_family_would_see_the_first_one_otherwise(tmp_path):
    """LLaVA-OneVision shows images without tiles where a conversation has several."""
    path = write_tiny_vision_model(tmp_path / "model", "llava_onevision")
    loader = MediaLoader(MediaOptions(folder=str(tmp_path / "media")))
    image = loader.take(noisy(16, 24), tmp_path)

    def read(count: int, **options: bool) -> int:
        family = ImageTextModel(VlmConfig(**options)).family(str(path), trust_remote_code=False)
        own = family.tokens.tokens_of(image)
        spans = [
            MediaSpan(start=1 + place * len(own), length=len(own), image=image)
            for place in range(count)
        ]
        row = PictureReader(family, loader.store).row([5, *own * count, 6], spans, "row")
        return len(row.pictures)

    assert (read(1), read(2, tiled=True), read(2, tiled=False)) == (1, 2, 2)
    with pytest.raises(
        ConfigError, match=r"2 images.*--model\.vlm\.tiled false", check=has_code("image/several")
    ):
        read(2)
    tokens = ImageTextModel(VlmConfig()).image_tokens(str(path), trust_remote_code=False)
    marker = tokens.marker_id
    assert len(ImageReader(loader, tokens).expand([marker], [image]).spans) == 1
    with pytest.raises(MediaProblem, match="there are 2 images"):
        ImageReader(loader, tokens).expand([marker, marker], [image, image])


def test_pixels_of_gemma_4_are_rounded_once(tmp_path):
    """In bfloat16 as Transformers does it, which scales them before."""
    path = write_tiny_vision_model(tmp_path / "model", "gemma4", initializer_range=0.1)
    made = ImageTextModel(VlmConfig()).family(str(path), trust_remote_code=False)
    model, _ = made.load(dtype=torch.bfloat16, output_loading_info=True)
    picture = made.picture(noisy(24, 16))

    with torch.no_grad():
        found = made.features(model, [picture]).embeddings
        own = model.get_image_features(**picture.inputs, return_dict=True).pooler_output[0]

    torch.testing.assert_close(found, own, atol=0, rtol=0)
