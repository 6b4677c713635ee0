"""Images of a rank's passes: in every pass all ranks run the part of the model that reads pixels, once each.

At stage 3 the ranks collect that part's weights together, and at stages 1 to 3 they sum its gradients together, so a
rank whose rows have no images would leave the others waiting.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from rlhf_core import ConfigError
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.models.vision_lm import VisionLM
from rlhf_torch.rows.packed_rows import PackedRows
from rlhf_torch.vision.family import Picture
from rlhf_torch.vision.pictures import PackedImages, PictureReader

from ..config import DeepSpeedConfig
from .ranks import Ranks

SIDE = 32
"""Pixels of the side of the image that stands in, which the model's processor brings to a size of its own."""


class PassImages:
    """Images of the passes of one model.

    Args:
        ranks: ranks that compute with parts of the model.
    """

    def __init__(self, lm: CausalLM, ranks: Ranks) -> None:
        self.reader: PictureReader | None = lm.reader if isinstance(lm, VisionLM) else None
        self._stand_in: Picture | None = None
        if isinstance(lm, VisionLM) and ranks.world_size > 1:
            lm.reads_at_once = True
            self._stand_in = _stand_in(lm.reader)

    def completed(self, packed: PackedRows) -> PackedRows:
        """Return the rows, with an image that no token takes features from if other ranks may have images."""
        if self._stand_in is None or packed.images is not None:
            return packed
        nowhere = torch.zeros(0, dtype=torch.int64, device=packed.input_ids.device)
        return replace(
            packed,
            images=PackedImages(pictures=(self._stand_in,), places=nowhere, sources=nowhere),
        )


def _stand_in(reader: PictureReader) -> Picture:
    from PIL import Image

    return reader.family.picture(Image.new("RGB", (SIDE, SIDE)))


def refuse_cut_images(config: DeepSpeedConfig) -> None:
    """Refuse options under which no rank has all tokens of a sequence, or its layers as they are.

    Raises:
        ConfigError: an option is set that does not work with images.
    """
    for name, is_set, off in (
        ("sequence_parallel", config.sequence_parallel > 1, "1"),
        ("tensor_parallel", config.tensor_parallel > 1, "1"),
        ("deep_compile", config.deep_compile, "false"),
    ):
        if is_set:
            raise ConfigError(
                f"--backend.deepspeed.{name} does not work with images (--model.vision) yet; set it to {off}, or train "
                "on text alone"
            )
