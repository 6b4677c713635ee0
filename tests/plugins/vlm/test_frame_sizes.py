"""Sizes, pixels and tokens of frames, against Transformers' processors of the real classes.

What imports torchvision there is compared where it is installed; sizes have cases by hand besides.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.images import noisy
from tests.plugins.vlm.written_videos import clip
from transformers import AutoConfig, AutoTokenizer
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.utils import is_torchvision_available
from transformers.video_utils import VideoMetadata

from rlhf_core import ConfigError
from rlhf_core.media import (
    Expanded,
    ImageReader,
    MediaLoader,
    MediaOptions,
    MediaProblem,
    MediaStore,
    PixelLimits,
    references_in,
)
from rlhf_data import TokenizerRenderer
from rlhf_data.tokenizer import load_tokenizer
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.families.video_settings import (
    QWEN2,
    QWEN3,
    Defaults,
    VideoSettings,
    size_of_frames,
)
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_vision import MERGE, PATCH, QWEN, write_tiny_vision_model
from rlhf_torch.vision.family import VideoFamily
from rlhf_torch.vision.pictures import PictureReader, SeenRow

SIDE = PATCH * MERGE
BOUNDS = {"shortest_edge": 4 * SIDE**2, "longest_edge": 24 * SIDE**2}


def settings(folder: Path, defaults: Defaults = QWEN2, *, all_frames: bool = False, **files: dict):
    """Settings in files of a model's folder, by their names without endings."""
    folder.mkdir(exist_ok=True)
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return VideoSettings.of(str(folder), defaults, bounds_all_frames=all_frames)


@pytest.mark.parametrize(
    ("count", "height", "width", "expected"),
    [
        (4, 64, 96, (64, 96)),  # 4 * 6144 lies within
        # 4 * 320 * 480 = 614400, of which 61440 may be: ratio sqrt(10), 320 / 3.162 = 101.2, 151.8
        (4, 320, 480, (96, 128)),
        # 4 * 32 * 32 = 4096, and 16384 have to be: ratio 2
        (4, 32, 32, (64, 64)),
        (3, 64, 96, (64, 96)),  # 3 frames count as 4
        # Enlarged to 32 x 128 first: 2 * 4096 of 16384, ratio sqrt(2): 45.3 and 181 are rounded up.
        (2, 10, 40, (64, 192)),
    ],
)
def test_frames_together_are_within_the_areas(count, height, width, expected):
    found = size_of_frames(
        count, height, width, factor=32, temporal_factor=2, smallest=16384, largest=61440
    )

    assert found == expected


def test_settings_are_those_that_transformers_reads_first(tmp_path):
    images = {"size": {"shortest_edge": 1, "longest_edge": 11}}
    videos = {"size": {"shortest_edge": 2, "longest_edge": 22}, "image_mean": [0.1, 0.2, 0.3]}
    whole = {"video_processor": {"size": {"shortest_edge": 3, "longest_edge": 33}}}
    first = settings(tmp_path / "a", preprocessor_config=images)
    second = settings(tmp_path / "b", preprocessor_config=images, video_preprocessor_config=videos)
    third = settings(
        tmp_path / "c",
        preprocessor_config=images,
        video_preprocessor_config=videos,
        processor_config=whole,
    )
    empty = settings(
        tmp_path / "d", QWEN3, processor_config={"processor_class": "Qwen3VLProcessor"}
    )

    assert [one.longest_edge for one in (first, second, third)] == [11, 22, 33]
    assert second.colors["image_mean"] == [0.1, 0.2, 0.3]
    assert third.colors["image_mean"] == list(QWEN2.image_mean)
    assert (empty.patch_size, empty.longest_edge) == (16, 32 * 32 * 768)


def test_older_names_of_areas_win_in_the_families_whose_class_knows_them(tmp_path):
    values = {"size": dict(QWEN2.size), "min_pixels": 3136, "max_pixels": 12845056}

    found = settings(tmp_path, preprocessor_config=values)

    assert (found.shortest_edge, found.longest_edge) == (3136, 12845056)


def test_settings_without_sizes_are_refused(tmp_path):
    for values in ({"do_resize": False}, {"size": {"height": 4, "width": 4}}):
        with pytest.raises(
            ConfigError,
            match=r"video_preprocessor_config\.json",
            check=has_code("image/video-sizes"),
        ):
            settings(tmp_path, video_preprocessor_config=values)


def test_limits_are_of_one_frame_and_exclude_nothing(tmp_path):
    values = {"size": {"shortest_edge": 784, "longest_edge": 78400}, "patch_size": 14}
    for all_frames in (False, True):
        found = settings(tmp_path, all_frames=all_frames, video_preprocessor_config=values)

        # 200 x 200 is 196 x 196 = 38416 at the next multiples of 28; 7000 allow 83 x 83, so 56 x 56.
        size = found.size(200, 200, 4, PixelLimits(max_pixels=7000))

        assert size == (56, 56)
        with pytest.raises(MediaProblem, match="min_pixels is"):
            found.size(200, 200, 4, PixelLimits(min_pixels=10**6))
        with pytest.raises(MediaProblem, match="at most 200 shorter ones"):
            found.size(2, 402, 4, PixelLimits())


def test_a_frame_has_its_share_where_the_processor_says_so(tmp_path):
    """Qwen2's: 0.9 * 100 tokens of 28 * 28 pixels, for 2 of 10 frames: 14112. Qwen3's: 78400 // 10 = 7840."""
    values = {
        "size": {"shortest_edge": 784, "longest_edge": 78400},
        "patch_size": 14,
        "cap_pixels_per_frame": True,
        "max_video_tokens": 100,
    }
    apart = settings(tmp_path, video_preprocessor_config=values)
    together = settings(tmp_path, all_frames=True, video_preprocessor_config=values)

    assert apart.size(280, 280, 10, PixelLimits()) == (112, 112)  # sqrt(14112) = 118.8
    assert together.size(280, 280, 10, PixelLimits()) == (84, 84)  # sqrt(7840) = 88.5


@pytest.fixture(scope="module", params=QWEN)
def folder(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / request.param
    write_tiny_vision_model(folder, request.param, initializer_range=0.1)
    values = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2, "size": BOUNDS}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def family(folder) -> VideoFamily:
    return ImageTextModel(VlmConfig()).family(str(folder), trust_remote_code=False)


def read(folder: Path, family: VideoFamily, chat: Sequence[dict]) -> tuple[Expanded, SeenRow]:
    reader = ImageReader(MediaLoader(MediaOptions(folder=str(folder / "media"))), family.tokens)
    messages = reader.messages(chat)
    ids = TokenizerRenderer(load_tokenizer(str(folder))).render(messages)
    whole = reader.expand(ids, references_in(messages))
    row = PictureReader(family, MediaStore(folder / "media")).row(*whole, "a row")
    return whole, row


def chat(frames: list, **more: object) -> list[dict]:
    shown = {"type": "video", "video": frames, **more}
    image = {"type": "image", "image": noisy(24, 16)}
    words = [{"type": "text", "text": text} for text in ("look ", " what now")]
    return [{"role": "user", "content": [words[0], shown, image, words[1]]}]


@pytest.mark.parametrize(("count", "fps"), [(4, 2.0), (5, 3.0), (2, 0.7)])
def test_times_are_written_as_transformers_writes_them(folder, family, count, fps):
    """By the method of the real class, which imports no torchvision."""
    if family.tokens.times is None:
        pytest.skip("positions tell the times in this family")
    whole, row = read(folder, family, chat(clip(1, count, (16, 24)), fps=fps))

    grid = torch.tensor([[-(-count // 2), 24 // PATCH, 16 // PATCH]])
    words = {"vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>"}
    stands_in = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=MERGE, temporal_patch_size=2),
        video_token="<|video_pad|>",
        **words,
    )
    stands_in._calculate_timestamps = Qwen3VLProcessor._calculate_timestamps.__get__(stands_in)
    metadata = VideoMetadata(count, fps=fps, frames_indices=list(range(count)))
    made = {"video_grid_thw": grid, "video_metadata": [metadata]}
    expected = Qwen3VLProcessor.replace_video_token(stands_in, made, 0)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    (first, *_, last) = [span for span in whole.spans if span.image.frame is not None]
    own = whole.token_ids[first.start : last.end]
    assert list(own) == tokenizer.encode(expected, add_special_tokens=False)
    assert len(row.pictures) == -(-count // 2) + 1


@pytest.mark.skipif(not is_torchvision_available(), reason="video processors need torchvision")
@pytest.mark.parametrize(
    ("size", "count", "fps", "area"),
    [
        *[((16, 24), 4, 2.0, None), ((16, 24), 3, 3.0, None), ((37, 29), 5, 1.5, None)],
        *[((100, 60), 6, 7.3, None), ((200, 100), 8, 0.5, None), ((64, 48), 4, 2.0, 600)],
    ],
)
def test_ids_and_pixels_are_those_of_the_real_processor(folder, family, size, count, fps, area):
    import transformers

    name, together = AutoConfig.from_pretrained(folder).model_type, folder.name[:5] == "qwen3"
    classes = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor"}
    of_videos = transformers.AutoVideoProcessor.from_pretrained(folder)
    processor = getattr(transformers, classes.get(name, "Qwen3VLProcessor"))(
        image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        video_processor=of_videos,
    )
    frames = clip(1, count, size)
    limits = {} if area is None else {"max_pixels": area}
    asked = chat(frames, fps=fps, **limits)
    metadata = {"fps": fps, "total_num_frames": count, "frames_indices": list(range(count))}
    bounds = (
        BOUNDS if area is None else BOUNDS | {"longest_edge": area * (count if together else 1)}
    )

    made = processor(
        text=[
            processor.tokenizer.apply_chat_template(
                asked, tokenize=False, add_generation_prompt=True
            )
        ],
        images=[noisy(24, 16)],
        videos=[frames],
        return_tensors="pt",
        videos_kwargs={"do_sample_frames": False, "video_metadata": [metadata], "size": bounds},
    )

    whole, row = read(folder, family, asked)
    assert list(whole.token_ids) == made["input_ids"][0].tolist()
    pixels = torch.cat([one.inputs["pixel_values"] for one in row.pictures[:-1]])
    # Pillow and torchvision round a resized color by at most one of 255 apart; without a change of size they agree.
    apart = 0.0 if size == (16, 24) else 1.01 / 255 / min(of_videos.image_std)
    torch.testing.assert_close(pixels, made["pixel_values_videos"], atol=apart + 1e-6, rtol=0)
