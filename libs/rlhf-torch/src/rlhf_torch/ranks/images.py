"""Images of a rank's passes: in every pass all ranks run the part of the model that reads pixels, once each.

Where ranks collect that part's weights together, or sum its gradients together, a rank whose rows have no images would
leave the others waiting.
"""

from __future__ import annotations

from dataclasses import replace

from ..models.modeling import CausalLM
from ..models.vision_lm import VisionLM
from ..rows.packed_rows import PackedRows
from ..vision.pictures import PictureReader
from .ranks import Ranks


class PassImages:
    """Images of the passes of one model.

    Args:
        ranks: ranks that compute with parts of the model.
    """

    def __init__(self, lm: CausalLM, ranks: Ranks) -> None:
        self.reader: PictureReader | None = lm.reader if isinstance(lm, VisionLM) else None
        self._completes = self.reader is not None and ranks.world_size > 1
        if isinstance(lm, VisionLM) and self._completes:
            lm.reads_at_once = True

    def completed(self, packed: PackedRows) -> PackedRows:
        """Return the rows, with an image that no token takes features from if other ranks may have images."""
        if self.reader is None or not self._completes or packed.images is not None:
            return packed
        return replace(packed, images=self.reader.stand_in(packed.input_ids.device))
