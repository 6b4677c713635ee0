"""Gemma 3n: a number of tokens for each image, inputs of each layer by token, and a table of the projector's own.

The visual encoder is a model of timm. The chat template writes ``<image_soft_token>``; in its place come two line
breaks, ``<start_of_image>``, one ``<image_soft_token>`` for each feature, ``<end_of_image>``, and two line breaks. The
line breaks are text, as in Gemma 3. Tokens above the text's, as ``<end_of_image>`` is, have their embeddings in tables
of the two projectors, for images and for sounds, and count as padding in the embeddings of layers.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from rlhf_core import ConfigError, MissingDependency

from ..config import VlmConfig
from .image_text_family import WholeImageFamily
from .loading import require_no_limits, token_ids
from .tokens_by_size import TokensBySize

MARKER = "<image_soft_token>"
"""The token of a feature, and what the template writes for an image."""


class Gemma3n(WholeImageFamily):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for Gemma 3n; what it hears is left aside.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's, or an option is for other families.
        MissingDependency: timm is not installed.
    """

    PROJECTOR = ("embed_vision",)

    def __init__(
        self, path: str, config: Any, options: VlmConfig, *, trust_remote_code: bool
    ) -> None:
        require_no_limits(path, "gemma3n", options)
        _require_timm(path)
        super().__init__(path, trust_remote_code=trust_remote_code)
        self.of_every = _grid_of(path, config, self.processor)
        begin, end = int(config.boi_token_id), int(config.eoi_token_id)
        self.feature_id, sound = int(config.image_token_id), int(config.audio_token_id)
        words = {"<start_of_image>": begin, MARKER: self.feature_id, "<end_of_image>": end}
        words |= {"<audio_soft_token>": sound}
        token_ids(path, words, trust_remote_code=trust_remote_code)
        self._text_tokens = int(config.text_config.vocab_size_per_layer_input)
        own = [begin, *[self.feature_id] * int(config.vision_soft_tokens_per_image), end]
        writing = self.writing(trust_remote_code=trust_remote_code, marker=MARKER, around="\n\n")
        never_sampled = (begin, self.feature_id, sound)
        self.tokens = TokensBySize(
            self.feature_id, lambda height, width: own, never_sampled, writing
        )

    def token_embeddings(self, model: PreTrainedModel, input_ids: Tensor) -> Tensor:
        """Return the embeddings (N, D) of tokens (N,): those of the text, of images and of sounds have a table each."""
        base: Any = model.base_model
        embeddings = super().token_embeddings(model, input_ids)
        sees, hears = base.embed_vision, base.embed_audio
        is_seen = (input_ids >= sees.vocab_offset) & (input_ids < hears.vocab_offset)
        for table, has in ((sees, is_seen), (hears, input_ids >= hears.vocab_offset)):
            # A token of another table is looked up as this one's last, and not used: a captured graph has fixed shapes.
            last = table.vocab_offset + table.vocab_size - 1
            found = table(input_ids=input_ids.masked_fill(~has, last)).to(embeddings.dtype)
            embeddings = torch.where(has[:, None], found, embeddings)
        return embeddings

    def token_inputs(self, model: PreTrainedModel, input_ids: Tensor) -> dict[str, Any]:
        """Return the embeddings that layers have of tokens (N,), in which those above the text's are the first one."""
        text: Any = self.text_model(model)
        ids = input_ids.masked_fill(input_ids >= self._text_tokens, 0)
        return {"per_layer_inputs": text.get_per_layer_inputs(ids[None])}  # (1, N, layers, width)


def _require_timm(path: str) -> None:
    if importlib.util.find_spec("timm") is None:
        raise MissingDependency(
            f"model {path} (gemma3n): its visual encoder is a model of the package timm, which is not installed.\n"
            "  pip install 'rlhf-plugin-vlm[timm]'"
        )


# Any: the configuration of a model, and an image processor.
def _grid_of(path: str, config: Any, processor: Any) -> tuple[int, int]:
    """Return the rows and columns of features that the visual encoder makes of the processor's images."""
    size = dict(processor.size)
    if not processor.do_resize or not {"height", "width"} <= size.keys():
        raise ConfigError(
            f"model {path}: its image processor leaves the sizes of images as they are (do_resize, size); expected one "
            "that gives all images one height and width",
            code="image/unsupported-processor",
        )
    with torch.device("meta"):  # shapes alone
        tower = AutoModel.from_config(config.vision_config).eval()
        pixels = torch.zeros(1, 3, size["height"], size["width"])
        shape = tuple(tower(pixels, do_pooling=False, return_dict=True).last_hidden_state.shape)
    wanted = int(config.vision_soft_tokens_per_image)
    width = int(config.vision_config.hidden_size)
    if len(shape) != 4 or shape[1] != width or shape[2] * shape[3] != wanted:
        raise ConfigError(
            f"model {path}: its image processor makes images of {size['width']} x {size['height']} pixels, of which "
            f"the visual encoder {config.vision_config.architecture} makes features of the shape {shape[1:]}, and the "
            f"model reads {wanted} of {width} numbers; expected the processor that belongs to the model",
            code="image/processor-differs",
        )
    return shape[2], shape[3]
