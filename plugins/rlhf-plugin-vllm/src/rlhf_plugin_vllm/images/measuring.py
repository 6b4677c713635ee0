"""Sizes of images as vLLM plans with them: an image has at most as many tokens as a sequence.

vLLM asks a processor of Transformers, which it loads with everything that a family can read: for some families this
takes torchvision, for videos that no run has. Each of vLLM's processes asks, so each has to be told: those that import
the worker's extension or the scheduler read the model's class from the environment.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..names import SEEING_VARIABLE

if TYPE_CHECKING:
    from vllm.config import ModelConfig

IMAGE = "image"
"""vLLM's name for images."""


@contextmanager
def images_measured(config: ModelConfig) -> Iterator[None]:
    """Have the processes that vLLM starts in the body, and this one, plan with ``measure_by_length``."""
    from vllm.model_executor.model_loader import get_model_architecture

    model_class = get_model_architecture(config)[0]
    measure_by_length(model_class)
    os.environ[SEEING_VARIABLE] = f"{model_class.__module__}:{model_class.__qualname__}"
    try:
        yield
    finally:
        del os.environ[SEEING_VARIABLE]


def measure_where_told() -> None:
    """Do in one of vLLM's processes what ``images_measured`` asked for; nothing if it did not."""
    if name := os.environ.get(SEEING_VARIABLE):
        module, _, class_name = name.partition(":")
        measure_by_length(getattr(importlib.import_module(module), class_name))


def measure_by_length(model_class: Any) -> None:
    """Have vLLM plan for images of a model, and for nothing else that it may read, without asking a processor."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    known = model_class._processor_factory
    if isinstance(known.info, ByLength):
        return
    MULTIMODAL_REGISTRY.register_processor(
        known.processor, info=ByLength(known.info), dummy_inputs=known.dummy_inputs
    )(model_class)


@dataclass(frozen=True, slots=True)
class ByLength:
    """Makes vLLM's description of a model's inputs, in which images alone count, each as a whole sequence."""

    describe: Callable[[Any], Any]
    """Makes vLLM's own description."""

    def __call__(self, context: Any) -> Any:
        described = self.describe(context)
        described.get_supported_mm_limits = lambda: {IMAGE: None}
        described.get_mm_max_tokens_per_item = lambda seq_len, mm_counts: {IMAGE: seq_len}
        return described
