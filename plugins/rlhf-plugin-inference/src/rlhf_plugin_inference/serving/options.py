"""Options of the model that commands which generate share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from rlhf_config import HubModel, Labels, NamedPaths, Selections, Selector
from rlhf_config.common import ImageData, ModelPath
from rlhf_core import CapabilityError
from rlhf_core.capabilities import ENGINE_SEES, FIX, SERVES_ADAPTERS

VISION = Selector("model.vision", "rlhf_vision_models")
ADAPTER = "model.adapter"
"""Option that names a PEFT folder beside the model's."""


class ModelToServe(ModelPath):
    vision: str | None = Field(
        None,
        description="component that reads images for the model, such as vlm; unset: the model reads text only",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="number type of parameters and matrix products; auto: bfloat16 if the model's files have it, "
        "else float32",
    )
    adapter: HubModel | None = Field(
        None,
        description="PEFT folder of an adapter for the model, or NAME@REVISION of the Hub; unset: none",
    )
    serve: Literal["auto", "adapter", "merged"] = Field(
        "auto",
        description="whether the adapter is served beside the base's weights or merged into them; auto: beside, if "
        "the engine serves adapters and this one is plain LoRA on linear layers inside the model, else merged",
    )
    quantize: Literal["none", "nf4"] = Field(
        "none",
        description="form of the base beside the adapter; nf4: linear layers in 4 bits with quantized scales, as the "
        "adapter qlora trains",
    )


def models_of(model: ModelToServe) -> NamedPaths:
    """Yield the option and the name of a model, and of the adapter beside it."""
    yield "model.path", model.path
    if model.adapter is not None:
        yield ADAPTER, model.adapter


def check_adapter(model: ModelToServe, selections: Selections, labels: Labels) -> None:
    """Refuse an adapter beside the base's weights for an engine that serves none.

    Raises:
        CapabilityError: names both options.
    """
    (engine,) = selections["engine.name"]
    provides = engine.registered.component.provides
    if model.adapter and model.serve == "adapter" and SERVES_ADAPTERS not in provides:
        raise CapabilityError(
            f"{labels('model.serve')} adapter: {labels('engine.name')} {engine.registered.name} serves no adapters "
            f"beside the base's weights. Set --model.serve merged, or choose an engine that provides {SERVES_ADAPTERS}."
        )


def adapter_without_effect(model: ModelToServe) -> Iterator[tuple[str, str]]:
    """Yield the options of an adapter where there is none, with the reason."""
    if model.adapter is None:
        for name in ("serve", "quantize"):
            yield f"model.{name}", "there is no adapter. Set --model.adapter FOLDER too."


def check_sight(model: ModelToServe, selections: Selections, labels: Labels) -> None:
    """Refuse images for an engine that reads text alone.

    Raises:
        CapabilityError: names both options.
    """
    if model.vision is None:
        return
    (engine,) = selections["engine.name"]
    if ENGINE_SEES not in engine.registered.component.provides:
        raise CapabilityError(
            f"{labels('model.vision')} {model.vision} needs {ENGINE_SEES!r}, and {labels('engine.name')} "
            f"{engine.registered.name} reads text alone: {FIX[ENGINE_SEES]}."
        )


def images_without_effect(model: ModelToServe) -> Iterator[tuple[str, str]]:
    """Yield the options on images of data where the model reads none, with the reason."""
    if model.vision is None:
        for name in ImageData.model_fields:
            yield f"data.{name}", "the model reads text alone. Set --model.vision too."
