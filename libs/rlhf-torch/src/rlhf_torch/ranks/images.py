"""Images of a rank's passes: in every pass all ranks run the part of the model that reads pixels, once each.

Where ranks collect that part's weights together, or sum its gradients together, a rank whose rows have no images would
leave the others waiting.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..models.modeling import CausalLM
from ..models.vision_lm import VisionLM
from ..rows.packed_rows import PackedRows
from ..vision.family import Picture
from ..vision.pictures import PackedImages, PictureReader
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
