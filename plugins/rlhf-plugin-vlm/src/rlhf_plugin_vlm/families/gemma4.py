"""Gemma 4: as many tokens for an image as its shape leaves of a largest number, and inputs of each layer by token.

The chat template writes ``<|image|>``; in its place come ``<|image>``, one ``<|image|>`` for each feature, and
``<image|>``. In smaller models each layer has embeddings of tokens of its own, in which an image's tokens count as
padding; in larger ones the tokens of an image see each other, in layers with a window alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

from rlhf_core import ConfigError
from rlhf_torch.vision.family import Features, Picture

from ..config import VlmConfig
from .image_text_family import WholeImageFamily, joined
from .loading import (
    OWN_SIZES,
    require_equal,
    require_no_limits,
    token_ids,
)
from .tokens_by_size import TokensBySize


class Gemma4(WholeImageFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for Gemma 4; what it hears is left aside.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
    """

    PROJECTOR = ("embed_vision",)
    INPUTS = ("pixel_values", "image_position_ids")
    looks_ahead_in_windows = True

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, "gemma4", options, OWN_SIZES)
        super().__init__(path, trust_remote_code=trust_remote_code)
        vision = config.vision_config
        for name in ("patch_size", "pooling_kernel_size"):
            require_equal(path, name, getattr(self.processor, name, None), getattr(vision, name))
        if not self.processor.do_resize:
            raise ConfigError(
                f"model {path}: its image processor leaves the sizes of images as they are (do_resize); expected one "
                "that brings them to patches",
                code="image/unsupported-processor",
            )
        ahead = config.text_config.use_bidirectional_attention
        if ahead not in (None, "vision"):
            raise ConfigError(
                f"model {path}: its use_bidirectional_attention is {ahead}, so that text sees what is behind it; "
                "expected vision or none, as models that write have",
                code="image/unsupported-processor",
            )
        self.looks_ahead = ahead == "vision"
        begin, end = int(config.boi_token_id), int(config.eoi_token_id)
        self.feature_id = int(config.image_token_id)
        words = {"<|image>": begin, "<image|>": end, "<|image|>": self.feature_id}
        token_ids(path, words, trust_remote_code=trust_remote_code)
        more = (config.video_token_id, config.audio_token_id)
        self._padding = int(config.text_config.pad_token_id)
        self._paddings = (self.feature_id, *(int(token) for token in more if token is not None))

        def own(height: int, width: int) -> list[int]:
            rows, columns = self.grid(height, width)
            return [begin, *[self.feature_id] * (rows * columns), end] if rows else []

        writing = self.writing(trust_remote_code=trust_remote_code)
        self.tokens = TokensBySize(
            self.feature_id, own, (begin, *self._paddings), writing, sees=OWN_SIZES
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of an image's features; (0, 0): the processor cannot read it."""
        patch, pool = int(self.processor.patch_size), int(self.processor.pooling_kernel_size)
        try:
            size = get_aspect_ratio_preserving_size(
                height, width, patch, self.processor.max_soft_tokens * pool**2, pool
            )
        except ValueError:  # too narrow for a patch at this area
            return 0, 0
        rows, columns = (side // (patch * pool) for side in size)
        return rows, columns

    def features(self, model: PreTrainedModel, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's."""
        device = next(self.tower(model).parameters()).device
        # The tower brings pixels to its range in their own precision, and then to its dtype.
        given = {name: part.to(device) for name, part in self.batched(pictures).items()}
        found = model.base_model.get_image_features(**given, return_dict=True)
        return Features(joined(found.pooler_output))

    def token_inputs(self, model: PreTrainedModel, input_ids: Tensor) -> dict[str, Any]:
        """Return what layers read of tokens (N,) themselves; nothing for models without such embeddings."""
        text: Any = self.text_model(model)
        if not text.config.hidden_size_per_layer_input:
            return {}
        ids = input_ids
        for token in self._paddings:
            # One by one: a captured graph takes numbers, and no new tensor of them.
            ids = ids.masked_fill(input_ids == token, self._padding)
        return {
            "per_layer_inputs": text.get_per_layer_inputs(ids[None], None)
        }  # (1, N, layers, width)
