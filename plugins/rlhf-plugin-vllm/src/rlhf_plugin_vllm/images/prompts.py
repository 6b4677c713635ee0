"""Prompts as vLLM takes them, with the pixels of their images."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import EngineSpec, GenerationRequest, Uid, VisionSpec
from rlhf_core.media import ImageTokens
from rlhf_core.plugins import load
from rlhf_torch.vision.family import Picture
from rlhf_torch.vision.pictures import PictureReader, open_reader

from .measuring import IMAGE

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

TILES_APART = frozenset(
    {"LlavaNextForConditionalGeneration", "LlavaOnevisionForConditionalGeneration"}
)
"""Architectures to which vLLM gives the tiles of an image in an axis of their own."""


NO_VIDEOS = (
    "the engine vllm does not take them, since its tokens of a video are others than those of Transformers. Choose "
    "--engine embedded, or give the frames as images"
)


def require_within(window: int | None, num_tokens: int, uid: Uid) -> None:
    """Refuse an image whose tokens look ahead and are more than the layers with a window see.

    Raises:
        PluginError: it has more tokens than ``window``, and vLLM lets the tokens of such an image look back alone.
    """
    if window is not None and num_tokens > window:
        raise PluginError(
            f"request {uid}: an image has {num_tokens} tokens, which see each other in both directions, and the window "
            f"of the model's layers is {window}. vLLM lets the tokens of such an image look back alone, so that "
            "log-probs differ from the trainer's. Choose --engine embedded",
            code="vllm/image-beyond-window",
        )


class ImagePrompts:
    """Makes vLLM's prompts of requests, for a model that reads images.

    Raises:
        ConfigError: the model reads no images, or its processor is another model's.
        PluginError: the chosen component is not made for torch.
    """

    def __init__(self, spec: EngineSpec, vision: VisionSpec) -> None:
        self._reader: PictureReader = open_reader(
            vision, spec.model_path, load(), trust_remote_code=spec.trust_remote_code
        )
        # One thread: files and pixels take long for the event loop, and the reader keeps what it has read.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlhf-images")

    def require_attention(self, model: str, *, on_cpu: bool) -> None:
        """Refuse a model whose images vLLM's attention does not compute on this device.

        Raises:
            ConfigError: the tokens of an image look ahead, and vLLM computes on a CPU.
        """
        if on_cpu and self._reader.family.looks_ahead:
            raise ConfigError(
                f"model {model}: the tokens of an image see each other in both directions. vLLM's attention for CPUs "
                "lets them look back alone, so that log-probs differ from the trainer's by hundredths of a nat. Choose "
                "--engine embedded, or a GPU.",
                code="vllm/attention",
            )

    @property
    def never_sampled(self) -> tuple[int, ...]:
        """Tokens that stand for images, which have no probability."""
        tokens: ImageTokens = self._reader.family.tokens
        return tokens.never_sampled

    async def of(self, request: GenerationRequest, llm: AsyncLLM) -> Any:
        """Return the prompt of a request.

        Raises:
            PluginError: the tokens of an image are not those of the model's processor, or more than vLLM lets see each
                other, or it is a frame of a video.
            DataError: an image is gone from the run's store.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._prompt, request, llm)

    def _counts(self, picture: Picture) -> dict[str, torch.Tensor]:
        """Return what vLLM's processors give beside pixels: the number of tiles, under the names of the families that
        ask, the token on which features stand, and that all pixels of a tile are the image's. What a family does not
        ask for is left aside."""
        pixels = picture.inputs["pixel_values"]
        tiles = torch.tensor([len(pixels)])
        return {
            "num_patches": tiles,
            "image_num_patches": tiles,
            "image_token_id": torch.tensor(self._reader.family.feature_id),
            "pixel_attention_mask": torch.ones(len(pixels), *pixels.shape[-2:], dtype=torch.bool),
        }

    def close(self) -> None:
        """End the thread that reads images."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _prompt(self, request: GenerationRequest, llm: AsyncLLM) -> Any:
        if any(span.image.frame is not None for span in request.media):
            raise PluginError(
                f"request {request.uid}: there are frames of a video; {NO_VIDEOS}",
                code="vllm/no-frames",
            )
        row = self._reader.row(request.prompt_ids, request.media, f"request {request.uid}")
        ids = list(request.prompt_ids)
        if not row.pictures:
            return {"prompt_token_ids": ids}
        from vllm.inputs import mm_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        fields = llm.renderer.get_mm_processor()._get_mm_fields_config
        items, ranges = [], []
        for span, picture, places in zip(request.media, row.pictures, row.places, strict=True):
            inputs = {**self._counts(picture), **picture.inputs}
            if "image_position_ids" in inputs:
                inputs["pixel_position_ids"] = inputs["image_position_ids"]
            if TILES_APART.intersection(llm.model_config.architectures):
                inputs["pixel_values"] = inputs["pixel_values"][
                    None
                ]  # (1, tiles, 3, height, width)
            items += MultiModalKwargsItems.from_hf_inputs(inputs, fields(inputs, {}))[IMAGE]
            has_feature = torch.zeros(span.length, dtype=torch.bool)
            has_feature[places - span.start] = True
            if self._reader.family.looks_ahead:
                window = getattr(llm.model_config.hf_text_config, "sliding_window", None)
                require_within(window, len(places), request.uid)
            ranges.append(
                PlaceholderRange(offset=span.start, length=span.length, is_embed=has_feature)
            )
        return mm_input(
            ids,
            MultiModalKwargsItems({IMAGE: items}),
            {IMAGE: list(row.identities)},
            {IMAGE: ranges},
        )
