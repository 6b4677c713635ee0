"""Folders that hold weights in fewer bits: unpacked into the run's dtype as they are loaded, or refused by name.

Transformers unpacks while it reads, a weight at a time. What it leaves to the caller: it unpacks MXFP4 into bfloat16
whatever the model's dtype, takes the size of FP8 blocks from a weight's shape alone, which is wrong where the last
block of a weight is cut, and keeps the steps of the reading as those of writing, which lose weights of an export.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import FineGrainedFP8Config, Mxfp4Config, PreTrainedModel

from rlhf_core import ConfigError, MissingDependency
from rlhf_core.contracts import RoleSpec
from rlhf_core.outside.json_reader import parse_object

from .weight_files import model_file, weight_files

UNPACKED = {"mxfp4": Mxfp4Config, "fp8": FineGrainedFP8Config}
"""Methods of quantization whose weights are unpacked as they are read; a block of them and its scale give exact or
once rounded numbers."""
FOUR_BITS = "bitsandbytes"
"""Method whose weights stay in 4 bits: the base of an adapter that holds it so, or a model that is only read."""
SCALE = "_scale_inv"
"""End of the name of an FP8 weight's scales, behind the weight's own name."""
FP8 = ("F8_E4M3", "F8_E5M2")
"""Dtypes of FP8 weights in safetensors files; scales may have others of 8 bits."""
NESTED = "of its text_config"
"""Key of settings that are those of a part of the model."""

log = logging.getLogger(__name__)


def stored_quantization(path: str) -> Mapping[str, Any] | None:
    """Return the ``quantization_config`` in the config.json of a folder or hub name, or in its ``text_config``; None:
    there is none, or no file that can be read, which whoever loads the model is told with the reason."""
    try:
        file = model_file(path, "config.json")
        config = {} if file is None else parse_object(file.read_bytes())
    except (ConfigError, OSError, ValueError):
        return None
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        if isinstance(found := part.get("quantization_config"), dict) and found:
            return {**found, NESTED: True} if part is inner else found
    return None


def is_unpacked(path: str) -> bool:
    """Return whether the files of a folder or hub name hold weights that are unpacked as they are loaded."""
    settings = stored_quantization(path)
    return (
        settings is not None and settings.get("quant_method") in UNPACKED and NESTED not in settings
    )


def unpacking(path: str, load_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that unpack the weights of a folder or hub name; none where it holds
    plain weights, or weights in 4 bits.

    Args:
        load_options: further arguments of ``from_pretrained``, by which an adapter may quantize the base.

    Raises:
        ConfigError: the weights are quantized in a way that is not unpacked, or in blocks that Transformers would
            unpack wrongly, or the base is to be quantized in another way.
        MissingDependency: FP8 needs accelerate.
    """
    settings = stored_quantization(path)
    if settings is None:
        return {}
    method = str(settings.get("quant_method"))
    if method not in UNPACKED or NESTED in settings:
        if _stays_in_four_bits(settings):
            return {}
        raise ConfigError(_not_unpacked(path, settings), code="model/quantized")
    if load_options.get("quantization_config") is not None:
        raise ConfigError(
            f"model {path}: its files hold weights in {method}, and the base is to be quantized to 4 bits as it is "
            "loaded (actor.adapter qlora, or --model.quantize), which takes plain weights. Choose --actor.adapter "
            "lora, which unpacks them; or give the model in bfloat16",
            code="model/quantized",
        )
    if method == "fp8":
        _require_fp8(path, settings)
    log.info(
        "model %s: its files hold weights in %s, which are unpacked as they are loaded; they are trained, served and "
        "exported as plain weights",
        path,
        method,
    )
    return {"quantization_config": UNPACKED[method].from_dict({**settings, "dequantize": True})}


def refuse_four_bits(spec: RoleSpec, load_options: Mapping[str, Any]) -> None:
    """Refuse a role that trains a folder whose weights stay in 4 bits without an adapter that holds them so.

    Args:
        load_options: arguments of ``from_pretrained`` of the role's adapter; empty where it has none.

    Raises:
        ConfigError: the folder holds weights in 4 bits, and the adapter does not.
    """
    if spec.objective is None or "quantization_config" in load_options:
        return
    settings = stored_quantization(spec.model_path)
    if settings is not None and _stays_in_four_bits(settings):
        raise ConfigError(
            f"model {spec.model_path} of the {spec.role}: its files hold weights in 4 bits (bitsandbytes), which are "
            "trained beside an adapter alone that holds its base so. Choose --actor.adapter qlora, or --critic.adapter "
            "qlora of a critic; or give the model in bfloat16",
            code="model/in-4-bits",
        )


def settle_unpacked(path: str, model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give an unpacked model one dtype, and have it written as a model of plain weights.

    Raises:
        ConfigError: a weight is still packed.
    """
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point() or parameter.element_size() < 2:
            raise ConfigError(
                f"model {path}: {name} is still {parameter.dtype} after its weights were unpacked, so this way of "
                "quantization is not known here. Give the model in bfloat16 or float32",
                code="model/still-quantized",
            )
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.to(dtype)
    # The steps by which the packed files were read: save_pretrained would undo them, and write scales or lose experts.
    # Without them it takes those of the architecture.
    model._weight_conversions = None


def _stays_in_four_bits(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("load_in_4bit")) and settings.get("quant_method") in (FOUR_BITS, None)


def _not_unpacked(path: str, settings: Mapping[str, Any]) -> str:
    method = settings.get("quant_method") or "an unnamed method"
    bits = " in 8 bits" if settings.get("load_in_8bit") else ""
    place = f" {NESTED}" if NESTED in settings else ""
    return (
        f"model {path}: its files hold weights quantized by {method}{bits} (quantization_config{place} in "
        f"config.json); expected plain weights, or {' or '.join(UNPACKED)} for the whole model, which are unpacked as "
        "they are loaded. Give the model in bfloat16 or float32 from which this one was made"
    )


def _require_fp8(path: str, settings: Mapping[str, Any]) -> None:
    """Refuse FP8 that Transformers cannot unpack here, or would unpack wrongly."""
    if find_spec("accelerate") is None:
        raise MissingDependency(
            f"model {path}: its files hold weights in fp8, and Transformers unpacks them with accelerate.\n"
            "  pip install 'accelerate>=1.10'"
        )
    if settings.get("modules_to_convert"):
        raise ConfigError(
            f"model {path}: its files hold embeddings in fp8 (modules_to_convert of quantization_config), which stay "
            "packed; expected linear layers alone. Give the model in bfloat16",
            code="model/fp8-embeddings",
        )
    tensors = {name: (dtype, shape) for name, dtype, shape in _tensors(path)}
    for name, (dtype, shape) in tensors.items():
        if dtype not in FP8:
            continue
        if not name.endswith(".weight"):
            raise ConfigError(
                f"model {path}: {name} is in fp8, and Transformers unpacks weights of linear layers alone, each "
                "expert's among them. Give the model in bfloat16",
                code="model/fp8-outside-linear",
            )
        scales = tensors.get(name + SCALE) or tensors.get(name.removesuffix("weight") + "scale")
        if scales is None:
            raise ConfigError(
                f"model {path}: {name} is in fp8, and the files have no scales for it; expected {name}{SCALE}. Give "
                "all files of the model",
                code="model/no-scales",
            )
        _require_whole_blocks(path, name, shape, scales[1], settings.get("weight_block_size"))


def _require_whole_blocks(
    path: str, name: str, shape: tuple[int, ...], grid: tuple[int, ...], block: Sequence[int] | None
) -> None:
    """Refuse a weight whose last rows or columns are a part of a block: Transformers divides each side evenly."""
    if block is None:
        return
    sides = zip(shape[-2:], grid[-2:], block, strict=False)
    if any(count > 1 and width != count * size for width, count, size in sides):
        raise ConfigError(
            f"model {path}: {name} is {shape[-2]} x {shape[-1]}, no whole number of its blocks of {block[0]} x "
            f"{block[1]} in fp8, which Transformers would unpack wrongly. Give the model in bfloat16",
            code="model/fp8-blocks",
        )


def _tensors(path: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield name, dtype and shape of each tensor in a model's files; no tensor is read."""
    for file in weight_files(path):
        try:
            with safe_open(str(file), framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - the file is no mapping
                    part = tensors.get_slice(name)
                    yield name, part.get_dtype(), tuple(part.get_shape())
        except (OSError, SafetensorError, ValueError) as error:
            raise ConfigError(
                f"model {path}: its weights cannot be read: {error}",
                code="model/weights-unreadable",
            ) from error
