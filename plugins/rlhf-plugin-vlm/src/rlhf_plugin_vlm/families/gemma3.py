"""Gemma 3: 256 tokens for each image, which see each other in both directions.

The chat template writes ``<start_of_image>``; in its place come two line breaks, the image between
``<start_of_image>`` and ``<end_of_image>``, and two line breaks, as the model's own processor has them. The line breaks
are text: those that the template has beside an image become one token with them.
"""

from __future__ import annotations

from typing import Any

from rlhf_core import ConfigError

from ..config import VlmConfig
from .image_text_family import WholeImageFamily
from .loading import require_no_limits, require_size, token_ids
from .tokens_by_size import TokensBySize


class Gemma3(WholeImageFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for Gemma 3.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    looks_ahead = True

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, "gemma3", options)
        super().__init__(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        require_size(path, self.processor, (vision.image_size, vision.image_size))
        if getattr(self.processor, "do_pan_and_scan", None):
            raise ConfigError(
                f"model {path}: its image processor cuts images into crops (do_pan_and_scan), which is not supported "
                "here; set it to false in preprocessor_config.json",
                code="image/crops",
            )
        count = int(config.mm_tokens_per_image)
        side = int(count**0.5)
        self.of_every = (side, side)
        begin, end = int(config.boi_token_id), int(config.eoi_token_id)
        self.feature_id = int(config.image_token_id)
        words = {
            "<start_of_image>": begin,
            "<end_of_image>": end,
            "<image_soft_token>": self.feature_id,
        }
        token_ids(path, words, trust_remote_code=trust_remote_code)
        own = [begin, *[self.feature_id] * count, end]
        writing = self.writing(
            trust_remote_code=trust_remote_code, marker="<start_of_image>", around="\n\n"
        )
        self.tokens = TokensBySize(
            begin, lambda height, width: own, (begin, self.feature_id), writing
        )
