"""What Transformers' processors of the real classes make of conversations and images is what the policy reads, and what
they make of an exported folder is what they made of its base.

Every family is read in CI: a page of images and texts takes milliseconds.
"""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.images import noisy
from tests.plugins.vlm.processors import processor_of, write_model
from tests.plugins.vlm.vlm_material import SIZED, families, told
from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer
from transformers.utils import is_torchvision_available

from rlhf_core.media import ImageReader, MediaLoader, MediaOptions, PixelLimits, references_in
from rlhf_core.media.parts import image_parts
from rlhf_data import TokenizerRenderer
from rlhf_data.learned.chat_spans import ChatSpans
from rlhf_data.learned.images import with_images
from rlhf_data.learned.tokens import SpanTokenizer
from rlhf_data.tokenizer import load_tokenizer
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.tiny_vision import MORE_VISION_FAMILIES, QWEN, TILE, VISION_FAMILIES
from rlhf_testing.tiny_vision_families import GLM_FAMILIES
from rlhf_torch.vision.family import VisionFamily
from rlhf_torch.vision.processor_files import FILES

FAMILIES = (*VISION_FAMILIES, *MORE_VISION_FAMILIES)
NEED_TORCHVISION = (
    *("gemma4", *GLM_FAMILIES, "internvl", "llava_onevision", "mistral3", "smolvlm"),
    *QWEN,
)
"""Families whose processor Transformers imports with torchvision alone, most of them since it reads videos too."""
SIZES = ((24, 16), (16, 40), (8, 8), (40, 24), (13, 29), (64, 20))
PIECES = ("the cat", "\n", "\n\n", " ", "is red.", "\n\n\n", " a cat\n", "\nthe", "red\n\n")


@pytest.fixture(scope="module", params=families(FAMILIES))
def family(request) -> str:
    if request.param in NEED_TORCHVISION and not is_torchvision_available():
        pytest.skip("the processor of images and texts needs torchvision")
    if request.param == "smolvlm":
        pytest.importorskip("num2words", reason="SmolVLM's processor writes numbers of frames")
    return request.param


@pytest.fixture(scope="module")
def base(tmp_path_factory, family) -> Path:
    """A model's folder as Transformers writes it now: one file for all parts of the processor."""
    folder = write_model(tmp_path_factory.mktemp("base") / family, family)
    processor_of(folder, family).save_pretrained(folder)
    (folder / "preprocessor_config.json").unlink()
    return folder


@pytest.fixture(scope="module")
def older(tmp_path_factory, family) -> Path:
    """A model's folder as it was written before: a file for each part, and the template in one of its own."""
    folder = write_model(tmp_path_factory.mktemp("older") / family, family)
    processor = processor_of(folder, family)
    whole = json.loads(processor.to_json_string())
    if video := whole.pop("video_processor", None):
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    whole.pop("image_processor")
    (folder / "processor_config.json").write_text(json.dumps(whole))
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(
        json.dumps({"chat_template": processor.tokenizer.chat_template})
    )
    return folder


def family_of(folder: Path, **options) -> VisionFamily:
    vision = ImageTextModel(VlmConfig(**told(folder) | options))
    return vision.family(str(folder), trust_remote_code=False)


def conversations(count: int, *, answers: bool) -> list[list[dict]]:
    """Random conversations with images, and texts whose ends merge with line breaks; they end with an answer, or
    before one."""
    draw = random.Random(7)

    def text() -> dict:
        return {"type": "text", "text": "x" + "".join(draw.choices(PIECES, k=4)) + "y"}

    def near() -> dict:
        return {"type": "text", "text": "".join(draw.choices(PIECES, k=3)) + "z"}

    def asked(number: int) -> list[dict]:
        parts = [draw.choice((text, near))() for _ in range(draw.randint(1, 2))]
        for _ in range(draw.randint(0 if number else 1, 2)):
            image = {"type": "image", "image": noisy(*draw.choice(SIZES))}
            parts.insert(draw.randint(0, len(parts)), image)
        return parts

    made = []
    for _ in range(count):
        turns = draw.randint(1, 3)
        chat: list[dict] = []
        for number in range(turns):
            chat.append({"role": "user", "content": asked(number)})
            chat.append({"role": "assistant", "content": [text()]})
        made.append(chat if answers else chat[:-1])
    return made


def expected_ids(processor, chat: Sequence[dict], *, reply: bool) -> list[int]:
    made = processor.apply_chat_template(
        [chat], tokenize=True, return_dict=True, add_generation_prompt=reply
    )
    return list(map(int, made["input_ids"][0]))


def readers(folder: Path) -> Callable[[Sequence[dict]], ImageReader]:
    """Returns the reader of a conversation's images; LLaVA-OneVision is told to cut the only image of one."""
    is_told = bool(told(folder))
    made = {
        several: ImageReader(
            MediaLoader(MediaOptions()),
            family_of(folder, **({"tiled": not several} if is_told else {})).tokens,
        )
        for several in (False, True)
    }
    return lambda chat: made[len(list(image_parts(chat))) > 1]


def test_prompts_have_the_ids_of_transformers(base):
    reader_of = readers(base)
    renderer = TokenizerRenderer(load_tokenizer(str(base)), writing=family_of(base).tokens.writing)
    processor = AutoProcessor.from_pretrained(base)

    for chat in conversations(100, answers=False):
        reader = reader_of(chat)
        messages = reader.messages(chat)
        found = reader.expand(renderer.render(messages), references_in(messages))

        assert list(found.token_ids) == expected_ids(processor, chat, reply=True), chat


def test_conversations_to_learn_from_have_the_ids_of_transformers(base):
    reader_of = readers(base)
    renderer = TokenizerRenderer(load_tokenizer(str(base)), writing=family_of(base).tokens.writing)
    spans, tokenizer = ChatSpans(renderer), SpanTokenizer(renderer, 2)
    processor = AutoProcessor.from_pretrained(base)

    for chat in conversations(40, answers=True):
        reader = reader_of(chat)
        plain = [
            {**one, "content": one["content"][0]["text"]} if one["role"] == "assistant" else one
            for one in chat
        ]
        text = spans.find(reader.messages(plain), [len(chat) - 1])
        found = with_images(tokenizer.tokenize([text])[0], text.media, reader)

        assert found.token_ids.tolist() == expected_ids(processor, chat, reply=False), chat
        (turn,) = found.turns.tolist()
        learned = renderer.decode(found.token_ids[slice(*turn)].tolist(), skip_special_tokens=False)
        assert learned.strip().startswith(chat[-1]["content"][0]["text"].strip()), learned


# Transformers' processor of GLM makes arrays of tensors in a way that torch has no answer to yet.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning")
@pytest.mark.parametrize("form", ["base", "older"])
def test_the_processor_of_an_export_is_that_of_its_base(request, tmp_path, form, family):
    source = request.getfixturevalue(form)
    exported = write_export(source, tmp_path / "out")

    of_base, of_export = map(AutoProcessor.from_pretrained, (source, exported))

    assert type(of_export) is type(of_base)
    assert of_export.to_dict() == of_base.to_dict()
    assert of_export.chat_template == of_base.chat_template
    for chat in conversations(5, answers=False):
        one, other = (
            processor.apply_chat_template(
                [chat],
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                add_generation_prompt=True,
            )
            for processor in (of_base, of_export)
        )
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(other[name], one[name], atol=0, rtol=0)


LIMITED = {
    **{name: {"max_pixels": 1024} for name in (*QWEN, *GLM_FAMILIES)},
    "qwen2_5_vl": {"max_pixels": 1024, "min_pixels": 256},
    "internvl": {"max_tiles": 2},
}


@pytest.mark.parametrize("form", ["base", "older"])
def test_what_options_change_of_images_is_in_the_export(request, tmp_path, form, family):
    if family not in LIMITED:
        pytest.skip("no option changes the sizes of images")
    source = request.getfixturevalue(form)
    options = LIMITED[family]

    exported = write_export(source, tmp_path / "out", **options)

    tokens = family_of(source, **options).tokens
    again = family_of(exported).tokens
    plain = family_of(source).tokens
    loader = MediaLoader(MediaOptions())
    images = [loader.take(noisy(*size), Path()) for size in ((64, 64), (80, 24), (8, 8))]
    assert [tokens.tokens_of(one) for one in images] == [again.tokens_of(one) for one in images]
    assert any(tokens.tokens_of(one) != plain.tokens_of(one) for one in images)
    processor = AutoProcessor.from_pretrained(exported)
    chat = [{"role": "user", "content": [{"type": "image", "image": noisy(64, 64)}]}]
    (taken,) = references_in(loader.messages(chat))
    ids = expected_ids(processor, chat, reply=True)
    own = tokens.tokens_of(taken)
    assert ids[ids.index(own[0]) :][: len(own)] == list(own)


@pytest.mark.parametrize("family", families(FAMILIES))
def test_limits_of_one_image_give_the_tokens_and_pixels_that_its_processor_gives(tmp_path, family):
    folder = write_model(tmp_path / family, family)
    made = family_of(folder)
    loader = MediaLoader(MediaOptions())
    areas = {"max_pixels": 2 * TILE**2} if family == "internvl" else {"max_pixels": 512}
    image = noisy(64, 48)
    part = {"type": "image", "image": image, **areas}
    (limited,) = references_in(loader.messages([{"role": "user", "content": [part]}]))

    if family in SIZED:
        with pytest.raises(ValueError, match=f"{SIZED[family]}, so max_pixels cannot"):
            made.tokens.tokens_of(limited)
        return
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    if family == "internvl":
        expected = processor(
            images=[image], crop_to_patches=True, max_patches=2, return_tensors="pt"
        )
    else:
        # The processors of GLM count an image as two frames.
        largest = 1024 if family.startswith("glm") else 512
        size = {"shortest_edge": processor.size["shortest_edge"], "longest_edge": largest}
        expected = processor(images=[image], size=size, return_tensors="pt")

    picture = made.picture(image, limited.limits)

    np.testing.assert_array_equal(picture.inputs["pixel_values"], expected["pixel_values"])
    own = made.tokens.tokens_of(limited)
    assert own.count(made.feature_id) == picture.num_features
    assert picture.num_features < made.picture(image).num_features


@pytest.mark.parametrize(
    ("family", "limits"),
    [
        ("qwen2_5_vl", {"min_pixels": 2**30}),
        ("internvl", {"max_pixels": TILE**2 - 1}),
        ("internvl", {"min_pixels": 100 * TILE**2}),
    ],
)
def test_limits_that_exclude_each_other_are_refused(tmp_path, family, limits):
    made = family_of(write_model(tmp_path / family, family))
    (image,) = references_in(
        MediaLoader(MediaOptions()).messages(
            [{"role": "user", "content": [{"type": "image", "image": noisy(), **limits}]}]
        )
    )

    assert image.limits == PixelLimits(**limits)
    with pytest.raises(ValueError, match=r"_pixels"):
        made.tokens.tokens_of(image)


def write_export(source: Path, folder: Path, **options) -> Path:
    """Write what an export writes but the weights."""
    AutoConfig.from_pretrained(source).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    family_of(source, **options).save(folder)
    assert not (folder / "model.safetensors").exists()
    return folder


@pytest.mark.parametrize("family", families(FAMILIES))
def test_the_image_processor_of_an_export_sees_what_that_of_its_base_sees(tmp_path, family):
    """Of all families, where torchvision is missing too; the processor's other parts are compared as files."""
    source = write_model(tmp_path / "model", family)
    files = {name: (source / name).read_bytes() for name in FILES if (source / name).is_file()}
    exported = write_export(source, tmp_path / "out")

    of_base, of_export = (
        AutoImageProcessor.from_pretrained(folder, backend="pil") for folder in (source, exported)
    )

    assert files
    assert {name: (exported / name).read_bytes() for name in files} == files
    for size in SIZES:
        one, other = (
            made(images=[noisy(*size)], return_tensors="np") for made in (of_base, of_export)
        )
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(other[name], one[name])


def test_files_for_videos_are_kept_where_nobody_reads_videos(tmp_path):
    """As in a repository of Qwen2.5-VL, whose files torchvision alone reads."""
    source = write_model(tmp_path / "model", "qwen2_5_vl")
    (source / "video_preprocessor_config.json").write_text('{"max_frames": 768}')
    (source / "processor_config.json").write_text('{"processor_class": "Qwen2_5_VLProcessor"}')
    changed = json.loads((source / "preprocessor_config.json").read_text())
    changed |= {"max_pixels": 12_845_056, "min_pixels": 3136}
    (source / "preprocessor_config.json").write_text(json.dumps(changed))

    plain = write_export(source, tmp_path / "plain")
    limited = write_export(source, tmp_path / "limited", max_pixels=4096)

    for name in (
        *("preprocessor_config.json", "processor_config.json"),
        "video_preprocessor_config.json",
    ):
        assert (plain / name).read_bytes() == (source / name).read_bytes()
    values = json.loads((limited / "preprocessor_config.json").read_text())
    assert values["size"]["longest_edge"] == 4096
    assert not {"max_pixels", "min_pixels"} & values.keys()
    assert (limited / "video_preprocessor_config.json").is_file()
    shutil.rmtree(source)
    assert family_of(limited).tokens.never_sampled
