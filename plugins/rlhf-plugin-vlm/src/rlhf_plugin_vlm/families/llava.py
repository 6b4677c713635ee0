"""LLaVA: the same number of tokens for each image, ``<image>`` alone, and positions as in text."""

from __future__ import annotations

from typing import Any

from ..config import VlmConfig
from .image_text_family import WholeImageFamily
from .loading import require_no_limits, require_size, token_ids
from .tokens_by_size import TokensBySize


class Llava(WholeImageFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for LLaVA 1.5 and what has its architecture.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, "llava", options)
        super().__init__(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        require_size(path, self.processor, (vision.image_size, vision.image_size))
        side = vision.image_size // vision.patch_size
        # The strategy "full" keeps the feature of the whole image, which stands before those of its parts.
        more = int(config.vision_feature_select_strategy == "full")
        self.of_every = (1, side**2 + 1) if more else (side, side)
        self.feature_id = int(config.image_token_id)
        token_ids(path, {"<image>": self.feature_id}, trust_remote_code=trust_remote_code)
        own = [self.feature_id] * (side**2 + more)
        writing = self.writing(trust_remote_code=trust_remote_code)
        self.tokens = TokensBySize(
            self.feature_id, lambda height, width: own, (self.feature_id,), writing
        )
