"""The causal language model that trainer and engine share: hidden states of packed tokens, and logits of chosen ones.

The model's own code runs unchanged; only its attention is replaced, by the layout of each forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError, PluginError

from ..packed.attention import Layout
from ..packed.embedding_noise import EmbeddingNoise
from ..packed.rope import PerSequenceRopes
from ..packed.whole_graph import WholeGraph
from ..recurrent.sequences import follow_sequences, recurrent_layers, sequences_of
from ..vision.pictures import PackedImages
from .layers import decoder_layers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


NEVER = -1e5
"""Logit of a token that is never sampled: its probability is exactly 0 at any temperature up to 10. It is finite, since
0 times minus infinity would make the entropy no number."""
NO_PRODUCT = NEVER / 2
"""Bound that no product of an output head is below; what is, is ``NEVER``, which a soft cap leaves as it is."""


class LogitForm(NamedTuple):
    """The way from the products of an output head to logits: the family's scale and soft cap, then the temperature."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def apply(self, raw: Tensor) -> Tensor:
        """Return ``softcap * tanh(scale * raw / softcap) / temperature`` in float32; without a softcap, and where
        ``raw`` is ``NEVER``, ``scale * raw / temperature``."""
        logits = raw.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            capped = self.softcap * torch.tanh(logits / self.softcap)
            logits = torch.where(raw < NO_PRODUCT, logits, capped)
        return logits if self.temperature == 1.0 else logits / self.temperature

    def slope(self, raw: Tensor) -> Tensor | float:
        """Return the derivative of ``apply`` at ``raw``."""
        slope = self.scale / self.temperature
        if self.softcap is None:
            return slope
        return slope * (1.0 - torch.tanh(raw.float() * self.scale / self.softcap).square())


class CausalLM(nn.Module):
    """A Transformers causal LM whose attention is computed by a ``Layout``.

    Args:
        model: a model that was loaded with this package's attention.
        compute_dtype: dtype of the matmuls; another one than that of the parameters means autocast.
    """

    def __init__(self, model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = compute_dtype
        self.pass_dtype: torch.dtype | None = None
        """Dtype of the parameters inside of a pass, where ranks that share them keep another one; None: as kept."""
        self.ropes = PerSequenceRopes(model)
        self.most_positions: int | None = None
        """Number of tokens for which the model has learned positions; None: it computes them."""
        self.noise = EmbeddingNoise(model)
        self.whole_graph: WholeGraph | None = None
        """Computes the hidden states, once the layers are compiled together."""
        self._config = config = model.config.get_text_config()
        self.recurrent = recurrent_layers(config)
        """Layers that carry a state along the sequence."""
        if self.recurrent:
            follow_sequences(decoder_layers(model), self.recurrent)
        self.logit_form = LogitForm(
            scale=_logit_scale(config), softcap=getattr(config, "final_logit_softcapping", None)
        )
        self._never: Tensor
        self.register_buffer("_never", torch.zeros(0, dtype=torch.int64), persistent=False)

    def hidden(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        layout: Layout,
        images: PackedImages | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, D) of one packed row of tokens (N,).

        Raises:
            ConfigError: a sequence is longer than the model has positions.
            PluginError: there are images, and this model reads text alone.
        """
        if self.most_positions is not None:
            self.require_positions(int(layout.sequence_lengths(1).max()))
        if images is not None:
            raise PluginError(
                f"{type(self.model).__name__} reads text alone, and was given images",
                code="model/reads-text-alone",
            )
        self.begin(layout)
        noise = self.noise.of(layout) if self.noise.is_on else nullcontext()
        ropes = nullcontext() if self.ropes.limit is None else self.ropes.of(layout)
        with self.autocast(), ropes, noise:
            if self.whole_graph is not None:
                return self.whole_graph(input_ids, position_ids, layout)
            output = self.model.base_model(
                input_ids=input_ids[None],
                position_ids=position_ids[None],
                use_cache=False,
                layout=layout,
            )
        hidden: Tensor = output.last_hidden_state.squeeze(0)
        return hidden

    def require_positions(self, length: int) -> None:
        """Refuse sequences of more tokens than the model has learned positions; a GPU would end the process.

        Raises:
            ConfigError: ``length`` is larger.
        """
        if self.most_positions is not None and length > self.most_positions:
            raise ConfigError(
                f"{type(self.model).__name__} has learned positions for {self.most_positions} tokens, and there may be "
                f"sequences of {length}. Set rollout.max_length (for evaluations eval.max_length), or data.max_length "
                f"of a run on examples, to {self.most_positions} at most, or choose another model.",
                code="model/too-few-positions",
            )

    def begin(self, layout: Layout) -> None:
        """Make what recurrent layers read of a layout.

        Made while a compiled layer is traced, it would change the layout behind the trace, which torch takes for an
        error of its own.
        """
        if self.recurrent:
            sequences_of(layout)

    def use_attention(self, name: str) -> None:
        """Have the model compute attention by another function of Transformers' interface."""
        self.model.set_attn_implementation(name)

    def compile_layers(self, **options: Any) -> None:
        """Compute the hidden states by one graph from now on; ``options`` go to ``torch.compile``.

        Raises:
            PluginError: the model has layers that carry a state, or its frequencies depend on the lengths of
                sequences, which a graph does not know.
        """
        if self.recurrent:
            raise PluginError(
                f"{type(self.model).__name__}: layers that carry a state along the sequence cannot be compiled as one "
                "graph. Set --backend.deepspeed.deep_compile false.",
                code="model/not-compilable",
            )
        if self.ropes.limit is not None:
            raise PluginError(
                f"{type(self.model).__name__}: the frequencies of its rotary embedding depend on the length of a "
                "sequence, so its layers cannot be compiled as one graph. Set --backend.deepspeed.deep_compile false.",
                code="model/not-compilable",
            )
        self.whole_graph = WholeGraph(self.model.base_model, options)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits (M, V) of hidden states (M, D) in float32, as the family scales and caps them."""
        return self.logit_form.apply(self.raw_logits(hidden))

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Return what logits are made of (M, V) for hidden states (M, D), in the dtype of the matmuls: the products of
        the output head, without a chance for ids that are never sampled."""
        products = self.products(hidden)
        return products.index_fill_(-1, self._never, NEVER) if len(self._never) else products

    def never_sample(self, ids: Iterable[int]) -> None:
        """Give ids no probability from now on, for the sampler and for the trainer alike."""
        never = sorted({*self._never.tolist(), *ids})
        self._never = torch.tensor(never, dtype=torch.int64, device=self._never.device)

    def mean_of_sampled(self, logits: Tensor) -> Tensor:
        """Return the mean (M,) of logits (M, V) over the ids that have a probability."""
        if len(self._never):
            logits = logits.index_fill(-1, self._never, 0.0)
        return logits.sum(-1) / self.num_sampled

    def grad_of_mean_logprobs(self, logits: Tensor, grad: Tensor) -> Tensor:
        """Return dL/ds (M, V) for s = ``logits``, given the gradient (M,) of the mean log-prob of the ids that have a
        probability: ``grad * (1 / V - p)``."""
        shares = torch.full_like(logits, 1.0 / self.num_sampled)
        if len(self._never):
            shares.index_fill_(-1, self._never, 0.0)
        return shares.sub_(logits.softmax(-1)).mul_(grad[:, None])

    @property
    def sampled_ids(self) -> Tensor:
        """Ids that have a probability, rising."""
        ids = torch.arange(self.vocab_size, device=self._never.device)
        return ids[~torch.isin(ids, self._never)]

    @property
    def num_sampled(self) -> int:
        """Number of ids that have a probability."""
        return self.vocab_size - len(self._never)

    def products(self, hidden: Tensor) -> Tensor:
        """Return the products (M, V) of the output head with hidden states (M, D), in the dtype of the matmuls."""
        with self.autocast():
            raw: Tensor = self.model.get_output_embeddings()(hidden)
        return raw

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which matmuls run in ``compute_dtype``."""
        if self.compute_dtype == self.dtype:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    @property
    def num_layers(self) -> int:
        return int(self._config.num_hidden_layers)

    @property
    def num_heads(self) -> int:
        return int(self._config.num_attention_heads)

    @property
    def num_kv_heads(self) -> int:
        heads = getattr(self._config, "num_key_value_heads", None)
        return int(heads or self._config.num_attention_heads)

    def key_width(self, layer: int) -> int:
        """Return the number of one token's keys in a layer with attention, of all heads: layers of Gemma 4 differ."""
        layers = getattr(self._config, "per_layer_config", None)
        own = self._config if layers is None else layers[layer]
        width = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
        return int((getattr(own, "num_key_value_heads", None) or own.num_attention_heads) * width)

    @property
    def hidden_size(self) -> int:
        return int(self._config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the output embeddings; token ids are smaller."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters in a pass; of those that hold floating numbers, where others are quantized."""
        if self.pass_dtype is not None:
            return self.pass_dtype
        dtypes: Iterator[torch.dtype] = (parameter.dtype for parameter in self.model.parameters())
        return next(dtype for dtype in dtypes if dtype.is_floating_point)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        first: nn.Parameter = next(self.model.parameters())
        return first.device


def _logit_scale(config: Any) -> float:
    """Return the factor by which the family scales its logits: Cohere's config has a factor, Granite's a divisor."""
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    return scale / float(getattr(config, "logits_scaling", None) or 1.0)
