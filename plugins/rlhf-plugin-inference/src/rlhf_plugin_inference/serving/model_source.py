"""Weights of a model on disk, as engines ask for them: as a module in this process, or a few tensors at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from rlhf_core import ConfigError
from rlhf_core.contracts import WeightSource
from rlhf_torch.adapters.folder import read_adapter
from rlhf_torch.models.adapted import load_merged
from rlhf_torch.models.buckets import buckets_of
from rlhf_torch.models.device import choose_device
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import DTYPES, CausalLM
from rlhf_torch.models.quantized_files import is_unpacked
from rlhf_torch.models.weight_files import stored_weights

from .options import ModelToServe
from .sight import Sight


def config_of(options: ModelToServe) -> Any:
    """Return the model's configuration, as Transformers reads it.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return AutoConfig.from_pretrained(options.path, trust_remote_code=options.trust_remote_code)
    except Exception as error:  # Transformers checks little of what the files hold
        raise ConfigError(
            f"model {options.path}: config.json cannot be read: {error}",
            code="model/unreadable-config",
        ) from error


def dtype_of(options: ModelToServe) -> str:
    """Return ``float32`` or ``bfloat16``; for ``auto`` what the model's config says.

    Raises:
        ConfigError: the config cannot be read.
    """
    if options.dtype != "auto":
        return options.dtype
    # Three bits of a float16 would be lost in bfloat16; in float32 none is.
    dtype = config_of(options).get_text_config().dtype
    return "bfloat16" if dtype == torch.bfloat16 else "float32"


class ModelSource(WeightSource):
    """``WeightSource`` of a folder or hub name. Weights are read when an engine asks for them, and nothing is kept.

    With an adapter, both forms are the merged model: summed in float32 and rounded once. A model that reads images is
    built for both forms, since its files may have other names than its weights, and so is one whose files hold weights
    that are unpacked as they are loaded.

    Args:
        sight: the model's way to read images; None: it reads text alone.
    """

    def __init__(self, options: ModelToServe, dtype: str, sight: Sight | None = None) -> None:
        self._options = options
        self._dtype = dtype
        self._sight = sight

    def module(self) -> nn.Module | None:
        """Return the model on its device (the GPU if there is one).

        Raises:
            ConfigError: the model cannot be loaded, or the adapter does not fit it.
            PluginError: the architecture or the adapter cannot be computed here.
        """
        return self._loaded().to(choose_device("auto")).eval().requires_grad_(False)

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the weights in the engine's dtype; without an adapter a file at a time is open, and no model is built.

        Raises:
            ConfigError: as ``module``; or embedding and head, which the base shares, differ under the adapter.
        """
        options = self._options
        if self._sight is not None or (options.adapter is None and is_unpacked(options.path)):
            yield from buckets_of(self._loaded().model.state_dict().items())
            return
        if options.adapter is None:
            yield from buckets_of(stored_weights(options.path, DTYPES[self._dtype]))
            return
        model = self._loaded().model
        if config_of(options).tie_word_embeddings and not model.config.tie_word_embeddings:
            raise ConfigError(
                f"--model.adapter {options.adapter}: it makes embedding and head of {options.path} differ, which an "
                "engine that knows the base alone has no room for. Merge it first: rlhf merge "
                f"{options.path} {options.adapter} OUT",
                code="adapter/changes-head",
            )
        yield from buckets_of(model.state_dict().items())

    def _loaded(self) -> CausalLM:
        options = self._options
        if options.adapter is None:
            return load_causal_lm(
                options.path,
                dtype=self._dtype,
                trust_remote_code=options.trust_remote_code,
                reader=None if self._sight is None else self._sight.pictures(options),
            )
        adapter = read_adapter(options.adapter)
        adapter.require_base(
            options.path, f"merge them: rlhf merge --same-base {options.path} {adapter.path} OUT"
        )
        return load_merged(
            options.path,
            adapter,
            dtype=self._dtype,
            trust_remote_code=options.trust_remote_code,
        )
