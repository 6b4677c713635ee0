"""Prompts as vLLM takes them, with the pixels of their images."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from rlhf_core import ConfigError
from rlhf_core.contracts import EngineSpec, GenerationRequest, VisionSpec
from rlhf_core.media import ImageTokens
from rlhf_core.plugins import load
from rlhf_torch.vision.family import Picture
from rlhf_torch.vision.pictures import PictureReader, open_reader

from .measuring import IMAGE

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class ImagePrompts:
    """Makes vLLM's prompts of requests, for a model that reads images.

    Raises:
        ConfigError: the model reads no images, its processor is another model's, or its images' tokens look ahead.
        PluginError: the chosen component is not made for torch.
    """

    def __init__(self, spec: EngineSpec, vision: VisionSpec) -> None:
        self._reader: PictureReader = open_reader(
            vision, spec.model_path, load(), trust_remote_code=spec.trust_remote_code
        )
        if self._reader.family.looks_ahead:
            raise ConfigError(
                f"model {spec.model_path}: the tokens of an image see each other in both directions. vLLM's attention "
                "for CPUs lets them look back alone, so that log-probs differ from the trainer's by hundredths of a "
                "nat, and its kernels for GPUs were not tried. Choose --engine embedded.",
                code="vllm/attention",
            )
        # One thread: files and pixels take long for the event loop, and the reader keeps what it has read.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlhf-images")

    @property
    def never_sampled(self) -> tuple[int, ...]:
        """Tokens that stand for images, which have no probability."""
        tokens: ImageTokens = self._reader.family.tokens
        return tokens.never_sampled

    async def of(self, request: GenerationRequest, llm: AsyncLLM) -> Any:
        """Return the prompt of a request.

        Raises:
            PluginError: the tokens of an image are not those of the model's processor.
            DataError: an image is gone from the run's store.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._prompt, request, llm)

    def _counts(self, picture: Picture) -> dict[str, torch.Tensor]:
        """Return the numbers that vLLM's processors give beside pixels: of tiles, under the names of the families that
        ask, and of the token on which features stand. What a family does not ask for is left aside."""
        tiles = torch.tensor([len(picture.inputs["pixel_values"])])
        token = torch.tensor(self._reader.family.feature_id)
        return {"num_patches": tiles, "image_num_patches": tiles, "image_token_id": token}

    def close(self) -> None:
        """End the thread that reads images."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _prompt(self, request: GenerationRequest, llm: AsyncLLM) -> Any:
        row = self._reader.row(request.prompt_ids, request.media, f"request {request.uid}")
        ids = list(request.prompt_ids)
        if not row.images:
            return {"prompt_token_ids": ids}
        from vllm.inputs import mm_input
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        fields = llm.renderer.get_mm_processor()._get_mm_fields_config
        items, ranges = [], []
        for span, picture, places in zip(request.media, row.pictures, row.places, strict=True):
            inputs = {**picture.inputs, **self._counts(picture)}
            items += MultiModalKwargsItems.from_hf_inputs(inputs, fields(inputs, {}))[IMAGE]
            has_feature = torch.zeros(span.length, dtype=torch.bool)
            has_feature[places - span.start] = True
            ranges.append(
                PlaceholderRange(offset=span.start, length=span.length, is_embed=has_feature)
            )
        return mm_input(
            ids,
            MultiModalKwargsItems({IMAGE: items}),
            {IMAGE: [image.identity for image in row.images]},
            {IMAGE: ranges},
        )
