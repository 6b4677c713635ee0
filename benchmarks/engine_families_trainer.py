"""The trainer beside the engine of ``engine_families.py``: a tiny model of one family, its prompts, and an update."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from rlhf_core.contracts import ComponentRef, PolicyObjective, RoleSpec, VisionSpec
from rlhf_core.media import Expanded, ImageReader, MediaLoader, MediaOptions
from rlhf_core.plugins import load
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.tiny_vision import MORE_VISION_FAMILIES, VISION_FAMILIES

SEEING = (*VISION_FAMILIES, *MORE_VISION_FAMILIES)
TILED: dict[str, dict[str, object]] = {"llava_onevision": {"tiled": True}}
"""Options of the image-text model, without which a family reads one image in a sequence."""


class Trainer:
    """A torch backend with the model of one folder, and what it reads images with."""

    def __init__(self, folder: Path, family: str, *, device: str, dtype: str) -> None:
        vision = ComponentRef(
            kind="rlhf_vision_models", name="vlm:vlm", options=TILED.get(family, {})
        )
        media = folder / "media"
        sees = family in SEEING
        self.vision = VisionSpec(component=vision, media_folder=str(media)) if sees else None
        loss = ComponentRef(kind="rlhf_policy_losses", name="algorithms:ppo")
        spec = RoleSpec(
            role="policy",
            model_path=str(folder),
            dtype=dtype,
            objective=PolicyObjective(loss=loss, aggregation="token-mean"),
            optimizer=ComponentRef(kind="rlhf_optimizers", name="algorithms:sgd"),
            vision=self.vision,
        )
        config = TorchBackendConfig(device=device, compute_dtype=dtype, compile=False)
        self.backend = TorchBackend(config)
        self.backend.setup(spec, load())
        self.images: ImageReader | None = None
        self.media = media
        if sees:
            model = ImageTextModel(VlmConfig(**TILED.get(family, {})))
            tokens = model.family(str(folder), trust_remote_code=False).tokens
            self.images = ImageReader(MediaLoader(MediaOptions(folder=str(media))), tokens)

    def module(self) -> torch.nn.Module | None:
        """Nothing: the engine gets weights as from another process."""
        return None

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        return self.backend.buckets()

    def prompts(self) -> list[Expanded]:
        """Three prompts; the model sees two images in two of them, if it sees."""
        if self.images is None:
            rows = [list(range(5, 26)), [7], [*range(60, 99, 3), 12, 9]]
            return [Expanded(token_ids=row, spans=()) for row in rows]
        marker = self.images.tokens.marker_id
        rows = [[5, 9, marker, 12, 30], [40, marker, 31, 8], [7, 50, 22]]
        found = []
        for number, row in enumerate(rows):
            count = row.count(marker)
            taken = [self.images.loader.take(picture(number), self.media) for _ in range(count)]
            found.append(self.images.expand(row, taken))
        return found

    @torch.no_grad()
    def move(self, noise: float) -> None:
        """Change every weight; the same weight under two names once."""
        draw = torch.Generator().manual_seed(5)
        seen = set()
        for bucket in self.backend.buckets():
            for weight in bucket.values():
                if weight.data_ptr() not in seen:
                    seen.add(weight.data_ptr())
                    step = noise * torch.randn(weight.shape, generator=draw)
                    weight.add_(step.to(weight.device, weight.dtype))


def picture(number: int) -> object:
    """An image of noise, of another size for each number."""
    from PIL import Image

    width, height = ((24, 16), (16, 40))[number % 2]
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
