"""The model of one role: a causal LM, with its own head or with one that gives a number, perhaps under an adapter."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import (
    ModelAdapter,
    NamedParameters,
    RoleSpec,
    ScalesRates,
    norm_parameters,
)
from rlhf_core.plugins import Plugins
from rlhf_weights import WeightSum, digest_of_sums, weight_sums

from ..adapters.folder import is_adapter
from ..adapters.merging import is_quantized
from ..building.deterministic import deterministic_kernels
from ..experts.routing import Routing, open_routing
from ..vision.parts import train_parts
from ..vision.pictures import PictureReader, open_reader
from .adapted import read_adapted
from .device import choose_compute_dtype, choose_device
from .layers import compile_layers, recompute_layers
from .loading import as_dtype, load_causal_lm, load_model, verified
from .modeling import CausalLM
from .quantized_files import refuse_four_bits
from .score_head import SCORE_HEAD, classifier_of, has_classifier, score_head, zero_head
from .shared_base import SHARES, BaseKey, SharedBase, find_base
from .vision_lm import VisionLM

log = logging.getLogger(__name__)

VALUE_HEAD = "value_head"
VALUE_HEAD_FILE = "value_head.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleOptions:
    """Options of a role's model; a backend fills them from its own options of the same names."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``auto``: the GPU if there is one."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the matmuls; see ``choose_compute_dtype``."""
    gradient_checkpointing: bool = False
    """Recompute each layer of a trained role in the backward pass."""
    compile: bool = False
    """Compile each layer with torch.compile, attention excepted."""
    deterministic: bool = False
    """Compute gradients by deterministic kernels."""


class RoleModel(nn.Module):
    """The modules of one role: ``lm``, and a ``value_head`` (D -> 1, float32) if the role is a critic or gives scores.

    Args:
        head_name: name of the value head among the weights.
    """

    def __init__(
        self,
        lm: CausalLM,
        value_head: nn.Linear | None,
        adapter: ModelAdapter | None,
        head_name: str = VALUE_HEAD,
    ) -> None:
        super().__init__()
        self.lm = lm
        self.value_head = value_head
        self.adapter = adapter
        self.head_name = head_name
        self._unpacked: list[WeightSum] | None = None
        self.base: SharedBase | None = None
        """The weights that other roles of this process may compute with too; None: they are this role's alone."""
        self.part_rates: dict[str, float] = {}
        """Factor of the learning rate of parameters by name, of parts of an image-text model that have one."""
        self.row_ends: tuple[int, ...] = ()
        """``RoleSpec.row_ends``, for the export."""
        self.embedding_noise = 0.0
        """``RoleSpec.embedding_noise``, of updates."""
        self.deterministic = False
        """``RoleOptions.deterministic``, of updates."""
        self.routing: Routing | None = None
        """Routes of tokens to experts in updates; None: the role is not trained, or has no experts."""

    def values(self, hidden: Tensor) -> Tensor:
        """Return the values (M,), in float32, of hidden states (M, D); the head's weights may have any dtype."""
        head = self.value_head
        assert head is not None
        bias = None if head.bias is None else head.bias.float()
        return F.linear(hidden.float(), head.weight.float(), bias)[:, 0]

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters by Hugging Face names, each once, the value head's last."""
        yield from self.lm.model.named_parameters()
        if self.value_head is not None:
            for name, parameter in self.value_head.named_parameters():
                yield f"{self.head_name}.{name}", parameter

    def named_trainable(self) -> NamedParameters:
        """Return the parameters that the optimizer trains."""
        trainable = tuple(pair for pair in self.named_weights() if pair[1].requires_grad)
        factors = {name: self.part_rates.get(name, 1.0) for name, _ in trainable}
        if isinstance(self.adapter, ScalesRates):
            factors = {
                name: factor * self.adapter.rate_factor(name) for name, factor in factors.items()
            }
        rates = {name: factor for name, factor in factors.items() if factor != 1.0}
        return NamedParameters(trainable, norm_parameters(self.lm.model), rates)

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Return a context in which the model computes what its base computes, with experts that the base chooses.

        Raises:
            PluginError: the role has no adapter.
        """
        if self.adapter is None:
            raise PluginError(
                "this role has no adapter, so there is no base beside it; ask for logprobs instead",
                code="adapter/none",
            )
        with self.choosing(), self.adapter.disabled(self.lm.model):
            yield

    def choosing(self) -> AbstractContextManager[None]:
        """Return a context in which tokens go to the experts that the model chooses, where routes are replayed."""
        return nullcontext() if self.routing is None else self.routing.choosing()

    def lets_share(self, lengths: NDArray[np.int64]) -> bool:
        """Return whether a beginning of sequences of these lengths may be computed once. It is not the same to a model
        that looks at the length, none is the same where each sequence has noise of its own, and layers that carry a
        state compute each sequence from its first token on."""
        if self.embedding_noise or self.lm.recurrent:
            return False
        return self.lm.ropes.limit is None or self.lm.ropes.let_share(lengths)

    @contextmanager
    def updating(self, seed: int, tokens: int) -> Iterator[None]:
        """Return a context for the passes of one update, in which the adapter's dropout and the noise on embeddings are
        on, if there are any, and routes of tokens to experts are recorded. Kernels are deterministic if that is wanted.

        Args:
            tokens: tokens of the update (``experts.routing.counted_tokens``), over all ranks; read where there is a
                balancing loss.
        """
        routing = nullcontext() if self.routing is None else self.routing.update(tokens)
        alpha = self.embedding_noise
        noise = self.lm.noise.on(alpha, seed) if alpha else nullcontext()
        with routing, noise, deterministic_kernels() if self.deterministic else nullcontext():
            if self.adapter is None:
                yield
                return
            with self.adapter.training(self.lm.model, seed):
                yield

    def served(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that engines get, by Hugging Face names: those of the plain model, merged under an adapter;
        or the adapter's factors alone, if engines serve it beside the base's weights."""
        if self.adapter is None:
            yield from self.lm.model.state_dict().items()
        elif self.adapter.served_rank is None:
            yield from self.adapter.merged_weights(self.lm.model)
        else:
            yield from self.adapter.factors(self.lm.model)

    def checksum(self, served: Iterable[tuple[str, Tensor]] | None = None) -> str:
        """Return the digest of what engines serve: ``served``, and what the base's weights in 4 bits are unpacked to.

        Args:
            served: what ``served`` yields, if it was collected already.
        """
        sums = weight_sums(self.served() if served is None else served)
        return digest_of_sums([*sums, *self._unpacked_sums()])

    def _unpacked_sums(self) -> list[WeightSum]:
        """Return the sums of unpacked weights, which are computed once, since the base never changes."""
        adapter = self.adapter
        if adapter is None or adapter.served_rank is None:
            return []
        if self._unpacked is None:
            is_packed = "quantization_config" in adapter.load_options()
            weights = adapter.unpacked_weights(self.lm.model) if is_packed else ()
            self._unpacked = weight_sums(weights)
        return self._unpacked

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint needs, by their names in the model: all of them, tied ones under each of
        their names; under an adapter the trained parameters alone."""
        if self.adapter is not None:
            return {
                name: weight.detach()
                for name, weight in self.named_weights()
                if weight.requires_grad
            }
        state = dict(self.lm.model.state_dict())
        if self.value_head is not None:
            head = self.value_head.state_dict()
            state |= {f"{self.head_name}.{name}": tensor for name, tensor in head.items()}
        return state


def build_role_model(
    spec: RoleSpec,
    options: RoleOptions,
    plugins: Plugins,
    bases: Sequence[SharedBase] | None = None,
) -> RoleModel:
    """Return the model of a role on its device; ``requires_grad`` is off for parameters that are not trained.

    Args:
        bases: bases of the process's other roles, of which the role takes one that is its own; None: the role shares
            its weights with nobody.

    Raises:
        ConfigError: the model cannot be loaded, or the options do not fit it or the machine.
        PluginError: the architecture or the adapter cannot be used.
    """
    device = choose_device(options.device)
    reader = None
    if spec.vision is not None:
        reader = open_reader(
            spec.vision, spec.model_path, plugins, trust_remote_code=spec.trust_remote_code
        )
    adapter: ModelAdapter | None = plugins.build(spec.adapter) if spec.adapter else None
    refuse_four_bits(spec, adapter.load_options() if adapter else {})
    leaves_base = adapter is not None or spec.objective is None
    # The language model: beside an adapter, on weights of another role, or by itself.
    base: SharedBase | None = None
    if spec.objective is None and is_adapter(spec.model_path):
        if reader is not None:
            raise ConfigError(
                f"the {spec.role} {spec.model_path} is an adapter, and with images a role is read from a whole model. "
                f"Make one: rlhf merge BASE {spec.model_path} OUT, and give OUT.",
                code="adapter/with-images",
            )
        lm, base = read_adapted(spec, bases or ())
    elif bases is not None and leaves_base and spec.head != "score":
        lm, base = _on_a_base(spec, adapter, bases, reader)
    else:
        lm = load_causal_lm(
            spec.model_path,
            dtype=spec.dtype,
            trust_remote_code=spec.trust_remote_code,
            adapt=partial(_adapted, spec, adapter),
            load_options=adapter.load_options() if adapter else None,
            needs_head=spec.head != "score",
            writes=spec.head == "lm",
            reader=reader,
            rows=spec.embedding_rows,
        )
    if spec.vocabulary is not None:
        lm.never_sample(spec.vocabulary.unused(lm.vocab_size))
    if spec.head == "score":
        _require_exportable(spec, lm.model)
    lm.compute_dtype = choose_compute_dtype(
        options.compute_dtype, lm.dtype, sum(p.numel() for p in lm.parameters()), device
    )
    # The head in the place of the model's own, and both as one role.
    value_head, head_name = None, VALUE_HEAD
    if spec.head == "value":
        value_head = _value_head(spec, lm)
    elif spec.head == "score":
        value_head, head_name = score_head(spec, lm.model), SCORE_HEAD
    role = RoleModel(lm, value_head, adapter, head_name).to(device).eval()
    role.base, role.row_ends = base, spec.row_ends
    role.embedding_noise, role.deterministic = spec.embedding_noise, options.deterministic
    role.routing = open_routing(spec, lm.model)
    # Which parameters are trained, and how their passes are computed.
    if spec.objective is None:
        role.requires_grad_(False)
    elif value_head is not None:
        _freeze_unused_head(lm)
    if isinstance(lm, VisionLM) and spec.vision is not None and spec.objective is not None:
        parts = spec.vision.parts
        role.part_rates = train_parts(spec.role, lm.model, lm.reader.family, parts)
        lm.always_sees = parts.freeze_text
    if options.gradient_checkpointing and spec.objective is not None:
        recompute_layers(lm.model)
    if options.compile:
        compile_layers(lm.model, joined=True)
    return role


def _on_a_base(
    spec: RoleSpec,
    adapter: ModelAdapter | None,
    bases: Sequence[SharedBase],
    reader: PictureReader | None,
) -> tuple[CausalLM, SharedBase | None]:
    """Return the role's model and its base, which is one of ``bases`` or a new one; None: it cannot be shared."""
    options = adapter.load_options() if adapter else {}
    key = BaseKey.of(spec, options)
    base = found = find_base(bases, key)
    if base is None:
        loaded = load_model(
            spec.model_path,
            dtype=spec.dtype,
            trust_remote_code=spec.trust_remote_code,
            load_options=options,
            writes=spec.head == "lm",
            reader=reader,
            rows=spec.embedding_rows,
        )
        base = SharedBase(key, loaded.model)
    shares = base.can_be_copied()
    model = base.view() if shares else loaded.model
    lm = verified(_adapted(spec, adapter, model), as_dtype(spec.dtype), reader)
    if found is not None:
        base.require_fixed(spec.role)
        log.info(SHARES, spec.role)
    return lm, base if shares else None


def _adapted(
    spec: RoleSpec, adapter: ModelAdapter | None, model: PreTrainedModel
) -> PreTrainedModel:
    if spec.head == "score" and (spec.vision is None or has_classifier(model)):
        # Raise now what an export would raise after the training.
        classifier_of(model, model.state_dict().keys())
    if adapter is None:
        return model
    wrapped = adapter.wrap(model, spec.seed)
    if not isinstance(wrapped, PreTrainedModel):
        raise PluginError(
            f"the adapter {type(adapter).__name__} returned a {type(wrapped).__name__}; the torch backend expects the "
            "Transformers model itself, changed in place",
            code="adapter/contract",
        )
    return wrapped


def _require_exportable(spec: RoleSpec, model: PreTrainedModel) -> None:
    if spec.vision is not None and is_quantized(model.config):
        raise ConfigError(
            f"the {spec.role} reads images and is exported as one model, and an adapter cannot be merged into a "
            "quantized base. Choose --actor.adapter lora, or none.",
            code="adapter/with-images",
        )


def _value_head(spec: RoleSpec, lm: CausalLM) -> nn.Linear:
    """Return the head saved with the model if there is one, else zeros: the first values are 0, whatever the seed."""
    head = zero_head(lm.hidden_size, bias=True)
    saved = Path(spec.model_path) / VALUE_HEAD_FILE
    if saved.exists():
        head.load_state_dict(load_file(saved))
    return head


def _freeze_unused_head(lm: CausalLM) -> None:
    """Freeze an output head that makes no logits, and so gets no gradient, unless it is tied."""
    embeddings = {id(parameter) for parameter in lm.model.get_input_embeddings().parameters()}
    for parameter in lm.model.get_output_embeddings().parameters():
        if id(parameter) not in embeddings:
            parameter.requires_grad_(False)
