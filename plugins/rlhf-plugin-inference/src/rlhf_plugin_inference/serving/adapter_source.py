"""A base and an adapter beside it, as engines ask for them: a module with PEFT's layers, or the factors alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn
from transformers import BitsAndBytesConfig

from rlhf_core import MissingDependency
from rlhf_core.contracts import WeightSource
from rlhf_torch.adapters.factors import factors
from rlhf_torch.adapters.folder import AdapterFolder
from rlhf_torch.models.buckets import buckets_of
from rlhf_torch.models.device import choose_device
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import DTYPES, CausalLM

from .options import ModelToServe


class AdapterSource(WeightSource):
    """``WeightSource`` of a base with an adapter that is not merged into it. The module is loaded once, and kept."""

    def __init__(self, options: ModelToServe, dtype: str, folder: AdapterFolder) -> None:
        self._options = options
        self._dtype = dtype
        self._folder = folder
        self._lm: CausalLM | None = None

    def module(self) -> nn.Module | None:
        """Return the base with the adapter's layers in it, on its device (the GPU if there is one).

        Raises:
            ConfigError: the model cannot be loaded, or the adapter does not fit it.
            MissingDependency: PEFT is not installed.
            PluginError: the architecture or the adapter cannot be computed here.
        """
        if self._lm is None:
            self._lm = self._loaded().to(choose_device("auto")).eval().requires_grad_(False)
        return self._lm

    def buckets(self) -> Iterator[dict[str, Tensor]]:
        """Yield the adapter's factors in the engine's dtype, with the scaling in B; the engine has the base.

        Raises:
            ConfigError: the adapter cannot be read.
        """
        return buckets_of(factors(self._folder, DTYPES[self._dtype]))

    def _loaded(self) -> CausalLM:
        # Imported here: an engine that takes factors needs no PEFT.
        from rlhf_torch.adapters.beside import put_beside

        options = self._options
        return load_causal_lm(
            options.path,
            dtype=self._dtype,
            trust_remote_code=options.trust_remote_code,
            load_options=_in_four_bits() if options.quantize == "nf4" else None,
            adapt=partial(put_beside, base=options.path, folder=self._folder),
        )


def _in_four_bits() -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that quantize linear layers as they are loaded, as qlora's do."""
    if find_spec("bitsandbytes") is None:
        raise MissingDependency(
            "--model.quantize nf4: it needs bitsandbytes.\n  pip install 'rlhf-plugin-inference[quantize]'"
        )
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    return {"quantization_config": config}
