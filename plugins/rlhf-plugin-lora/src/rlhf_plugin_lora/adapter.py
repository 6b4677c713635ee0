"""The model adapter that ``lora``, ``dora`` and ``qlora`` are: PEFT's layers inside of the Transformers model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import PluginError
from rlhf_torch.adapters.folder import AdapterFolder
from rlhf_torch.adapters.older_names import in_names_of
from rlhf_torch.adapters.stacks import UNMATCHED

from . import going_on
from . import weights as held
from .beginning import TOKENS
from .options import LowRankOptions
from .principal import begin_principal, doubled
from .quantized import compute_in_the_dtype_of_inputs, unpacked
from .stacks import stack_factors, take_over
from .targets import (
    LINEAR,
    adapted_modules,
    adapted_stacks,
    floating_dtype,
    require_patterns,
    saved_modules,
)
from .token_rows import TENSOR, TokenRows, embeddings_of, put_rows

PREFIX = "base_model.model."
"""Beginning of the names in PEFT's files, before the names of the plain model."""


class PeftAdapter:
    """Implements ``rlhf_core.contracts.ModelAdapter`` and ``ScalesRates``.

    Args:
        load_options: maker of the arguments of ``from_pretrained`` that quantize the base; None: it is not quantized.
        served_rank: see the contract.
        is_principal: PiSSA.
    """

    def __init__(
        self,
        options: LowRankOptions,
        *,
        load_options: Callable[[], Mapping[str, Any]] | None = None,
        served_rank: int | None = None,
        is_principal: bool = False,
    ) -> None:
        self.served_rank = served_rank
        self._options = options
        self._is_principal = is_principal
        self._load_options = load_options

    def load_options(self) -> Mapping[str, Any]:
        """Return what ``from_pretrained`` needs to quantize the base; nothing unless it is quantized."""
        return self._load_options() if self._load_options is not None else {}

    def wrap(self, model: PreTrainedModel, seed: int) -> PreTrainedModel:
        """Put PEFT's layers into the model and freeze the base.

        An adapter that goes on is put in twice. The second one is never trained: it is the reference.

        Raises:
            ConfigError: ``target``, ``target_parameters``, ``modules_to_save`` or ``init_from`` does not fit the model.
            PluginError: PEFT adapted other modules.
        """
        folder = self._options.beginning() if self._options.init_from is not None else None
        if folder is None:
            stacks = adapted_stacks(model, self._options.stacks())
            names = adapted_modules(model, self._options.target, self._options.exclude, stacks)
            config = self._config(model, names, stacks)
        else:
            folder = in_names_of(model, folder)
            going_on.require_fit(folder, model)
            names, stacks = going_on.adapted_by(folder, model)
            config = going_on.config_of(folder, _base_name(model), self._options.dropout)
        compute_in_the_dtype_of_inputs(model)
        self._inject(model, config, seed, [*names, *stacks])
        if tokens := self._tokens(folder):
            begins = [held.NAME] if folder is None else [held.NAME, held.BEGINNING]
            put_rows(model, tokens, begins, [*names, *held.saved_modules(model)])
        if folder is not None:
            going_on.load(folder, model, list(model.peft_config))
        return model

    def _inject(
        self, model: PreTrainedModel, config: LoraConfig, seed: int, names: Iterable[str]
    ) -> None:
        dtype = floating_dtype(model)
        with seeded(model, seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", UNMATCHED)  # patterns were checked before
            inject_adapter_in_model(config, model)
            if self._options.init_from is not None or self._is_principal:
                # PEFT asks whether a second adapter is meant.
                warnings.filterwarnings("ignore", "Already found a `peft_config`")
                inject_adapter_in_model(self._second(config), model, held.BEGINNING)
                for layer in _layers(model):
                    layer.set_adapter(held.NAME)
        take_over(model)
        adapted = held.lora_layers(model)
        found = {*adapted, *stack_factors(model)}
        if differing := set(names) ^ found:
            raise PluginError(
                f"PEFT adapted {len(found)} modules of {type(model).__name__} where {len(set(names))} were meant; "
                f"{min(differing)} is one that differs. Name the modules with the adapter's option target.",
                code="adapter/modules-differ",
            )
        for layer in adapted.values():
            layer.lora_dropout.eval()  # a new module is in training mode
            if not layer.get_base_layer().weight.is_floating_point():
                # Beside a weight in 4 bits PEFT's factors are float32, whatever the base computes in.
                layer.lora_A.to(dtype)
                layer.lora_B.to(dtype)
        if self._is_principal:
            begin_principal(adapted)

    def _tokens(self, folder: AdapterFolder | None) -> Sequence[int]:
        """Return the ids of the tokens whose embeddings are trained."""
        own = self._options.trainable_token_indices
        return own if folder is None else folder.config.get(TOKENS) or ()

    def _second(self, config: LoraConfig) -> LoraConfig:
        """Return the config of the adapter that is never trained."""
        second = copy(config)
        if self._is_principal:
            second.modules_to_save = None
            second.lora_dropout = 0.0
        return second

    def _config(self, model: PreTrainedModel, names: list[str], stacks: list[str]) -> LoraConfig:
        options = self._options
        require_patterns([*names, *stacks], options.ranks(), "rank_pattern")
        require_patterns([*names, *stacks], options.alphas(), "alpha_pattern")
        linear = [
            module for module in map(model.get_submodule, names) if isinstance(module, LINEAR)
        ]
        return LoraConfig(
            task_type="CAUSAL_LM",
            base_model_name_or_path=_base_name(model),
            r=options.new_rank,
            lora_alpha=options.scaled_by,
            rank_pattern=options.ranks(),
            alpha_pattern=options.alphas(),
            target_modules=names,
            target_parameters=stacks or None,
            lora_dropout=options.dropout,
            modules_to_save=saved_modules(model, options.modules_to_save) or None,
            use_rslora=bool(options.use_rslora),
            use_dora=self._options.has_magnitudes,
            # GPT-2's weights are (in, out).
            fan_in_fan_out=bool(linear) and not any(isinstance(m, nn.Linear) for m in linear),
        )

    def rate_factor(self, name: str) -> float:
        """Return ``lr_ratio`` for a factor B, or 1 (LoRA+, Hayou et al. 2024, arXiv:2402.12354)."""
        is_b = ".lora_B." in name or ".lora_embedding_B." in name
        return self._options.lr_ratio if is_b else 1.0

    @contextmanager
    def disabled(self, model: nn.Module) -> Iterator[None]:
        """Return a context in which the model computes what it computed before the first update, to the bit: as the
        base does, or as the adapter that goes on."""
        layers = _layers(model)
        goes_on = self._options.init_from is not None
        # PEFT's switch also decides what is trained, and would not bring back what was frozen for another reason.
        trained = [(parameter, parameter.requires_grad) for parameter in _own_parameters(model)]
        for layer in layers:
            layer.set_adapter(held.BEGINNING) if goes_on else layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in layers:
                layer.set_adapter(held.NAME) if goes_on else layer.enable_adapters(True)
            for parameter, requires_grad in trained:
                parameter.requires_grad_(requires_grad)

    @contextmanager
    def training(self, model: nn.Module, seed: int) -> Iterator[None]:
        """Return a context in which the adapter's dropout is active, by a random state of its own."""
        if not self._options.dropout:
            yield
            return
        layers = held.lora_layers(model).values()
        # DoRA's layers ask themselves whether they train, not their dropout; the base below them stays as it is.
        parts = [part for layer in layers for part in (layer, *layer.lora_dropout.modules())]
        with seeded(model, seed):
            for part in parts:
                part.training = True
            try:
                yield
            finally:
                for part in parts:
                    part.training = False

    def factors(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        """Yield the factors, with the scaling in B.

        Raises:
            ConfigError: something else than linear layers inside of the model is trained.
        """
        return held.factors(model)

    def unpacked_weights(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that are held in 4 bits, as the model computes with them."""
        return unpacked(model, floating_dtype(model))

    def merged_weights(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield the plain model's tensors with the adapter merged into them.

        Raises:
            ConfigError: the base is quantized.
        """
        return held.merged(model)

    def save(self, model: PreTrainedModel, folder: str) -> None:
        """Write a PEFT folder, which ``PeftModel.from_pretrained`` and ``AutoModelForCausalLM`` load."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        # "auto" would look for the base's config.json on the hub.
        found = get_peft_model_state_dict(model, save_embedding_layers=False)
        config = copy(model.peft_config[held.NAME])
        # PEFT has sets of names, whose order is another one in each process.
        if isinstance(config.target_modules, set):
            config.target_modules = sorted(config.target_modules)
        config.target_parameters = sorted(config.target_parameters or ()) or None
        if self._is_principal:
            config = doubled(config)
            for name, layer in held.lora_layers(model).items():
                pairs = held.active(layer)
                a = torch.cat([layer.lora_A[pair].weight.detach() for pair in pairs])
                b = torch.cat([layer.lora_B[pair].weight.detach() for pair in pairs], dim=1)
                found |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
        if (embeddings := embeddings_of(model)) is not None:
            name, table = embeddings
            found[f"{name}.{TENSOR}"] = table.trainable_tokens_delta[held.NAME].detach()
            config.trainable_token_indices = table.token_ids.tolist()
        tensors = {f"{PREFIX}{_key(name)}": tensor.contiguous() for name, tensor in found.items()}
        save_file(tensors, Path(folder) / "adapter_model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)


def _key(name: str) -> str:
    """Return a tensor's name in a PEFT folder. PEFT leaves ``.weight`` out for DoRA's lengths, and loads them with it
    too; Transformers loads them only with it, and else keeps the base's lengths with no more than a warning."""
    return f"{name}.weight" if name.endswith("lora_magnitude_vector") else name


def _layers(model: nn.Module) -> list[Any]:
    """Return what PEFT put into the model."""
    kinds = (BaseTunerLayer, ModulesToSaveWrapper, TokenRows)
    return [m for m in model.modules() if isinstance(m, kinds)]


def _own_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that the adapter added."""
    marks = (".lora_", ".modules_to_save.", ".trainable_tokens_delta.")
    return [p for name, p in model.named_parameters() if any(mark in name for mark in marks)]


def _base_name(model: PreTrainedModel) -> str:
    """Return the hub name of the base, or the whole path of its folder: the adapter's folder may be elsewhere."""
    name = str(model.name_or_path)
    return str(Path(name).resolve()) if Path(name).is_dir() else name


@contextmanager
def seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Return a context with a random state that depends on the seed alone; after it the global one is as it was."""
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed % 2**63)
        yield
