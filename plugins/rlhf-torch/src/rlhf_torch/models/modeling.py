"""A causal language model as trainer and engine share it: hidden states of packed tokens, and logits of chosen ones.

The model's own code runs unchanged; only its attention is replaced, by the layout of each forward pass.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf_core import ConfigError, PluginError

from ..packed import attention
from ..packed.attention import Layout
from ..packed.rope import PerSequenceRopes
from ..packed.whole_graph import WholeGraph
from .quiet import no_progress_bars
from .verification import own_attention, verify

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LogitForm(NamedTuple):
    """What a family does to the products of its output head, and what sampling does after it."""

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def apply(self, raw: Tensor) -> Tensor:
        """Return ``cap tanh(scale raw / cap) / temperature`` in float32."""
        logits = raw.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits if self.temperature == 1.0 else logits / self.temperature

    def slope(self, raw: Tensor) -> Tensor | float:
        """Return the derivative of ``apply`` where it was applied to ``raw``."""
        slope = self.scale / self.temperature
        if self.softcap is None:
            return slope
        return slope * (1.0 - torch.tanh(raw.float() * self.scale / self.softcap).square())


class CausalLM(nn.Module):
    """A Transformers causal LM whose attention is computed by a ``Layout``.

    Args:
        model: loaded with this package's attention.
        compute_dtype: with float32 parameters and another dtype here, matmuls run under autocast.
    """

    def __init__(self, model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.compute_dtype = compute_dtype
        self.ropes = PerSequenceRopes(model)
        self.whole_graph: WholeGraph | None = None
        """Computes the hidden states, once the layers are compiled together."""
        self._config = config = model.config.get_text_config()
        self.logit_form = LogitForm(
            scale=_logit_scale(config), softcap=getattr(config, "final_logit_softcapping", None)
        )

    def hidden(self, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
        """Return the last hidden states (N, D) of one packed row of tokens (N,)."""
        with self.autocast(), self.ropes.of(layout):
            if self.whole_graph is not None:
                return self.whole_graph(input_ids, position_ids, layout)
            output = self.model.base_model(
                input_ids=input_ids[None],
                position_ids=position_ids[None],
                use_cache=False,
                layout=layout,
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def compile_layers(self, **options: Any) -> None:
        """Compute the hidden states by one graph from now on; ``options`` are those of ``torch.compile``.

        Raises:
            PluginError: the model looks at the lengths of sequences, which are not known to a graph.
        """
        if self.ropes.limit is not None:
            raise PluginError(
                f"{type(self.model).__name__}: the frequencies of its rotary embedding depend on the length of a "
                "sequence, so its layers cannot be compiled as one graph. Set --backend.deepspeed.deep_compile false."
            )
        self.whole_graph = WholeGraph(self.model.base_model, options)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits (M, V) of hidden states (M, D) in float32, as the family scales and caps them."""
        return self.logit_form.apply(self.raw_logits(hidden))

    def raw_logits(self, hidden: Tensor) -> Tensor:
        """Return what the output head alone makes of hidden states (M, D): (M, V) in the dtype of the matmuls."""
        with self.autocast():
            raw: Tensor = self.model.get_output_embeddings()(hidden)
        return raw

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which matmuls run in ``compute_dtype``."""
        if self.compute_dtype == self.dtype:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def verify(self) -> None:
        """Refuse an architecture that packing would compute wrongly; see ``verification``."""
        verify(self)

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

    @property
    def head_dim(self) -> int:
        head_dim = getattr(self._config, "head_dim", None)
        return int(head_dim or self._config.hidden_size // self._config.num_attention_heads)

    @property
    def hidden_size(self) -> int:
        return int(self._config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the output embeddings: token ids are below it."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the parameters."""
        first: nn.Parameter = next(self.model.parameters())
        return first.dtype

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        first: nn.Parameter = next(self.model.parameters())
        return first.device


def load_causal_lm(
    path: str,
    *,
    dtype: str | torch.dtype,
    compute_dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
) -> CausalLM:
    """Load a folder or hub name on the CPU, in evaluation mode (dropout is never on), and verify it.

    Args:
        dtype: of the parameters, ``float32`` or ``bfloat16``.
        compute_dtype: of the matmuls; the parameters' when None.

    Raises:
        ConfigError: the path cannot be read, is no causal language model, or lacks weights.
        PluginError: the architecture is one that packing or this package's attention would compute wrongly.
    """
    parameter_dtype = _as_dtype(dtype)
    try:
        with no_progress_bars():
            model, info = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=parameter_dtype,
                attn_implementation=attention.NAME,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                use_safetensors=True,  # the other format is a pickle, which can run code
            )
    except Exception as error:  # Transformers checks little of what the files hold
        if isinstance(error, KeyError) and error.args == (attention.NAME,):
            raise PluginError(own_attention(f"model {path}")) from error
        raise _why_not(path, error, trust_remote_code) from error
    if lacking := sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"])):
        raise ConfigError(
            f"{path}: the weights do not fit its config.json: {len(lacking)} parameters would start from random "
            f"values, the first is {lacking[0]}. Expected the weights of a whole causal language model."
        )
    lm = CausalLM(model.eval(), _as_dtype(compute_dtype) if compute_dtype else parameter_dtype)
    lm.verify()
    return lm


def _as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ConfigError(f"dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _logit_scale(config: Any) -> float:
    """What the family multiplies its logits with: Cohere has a factor, Granite a divisor."""
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    return scale / float(getattr(config, "logits_scaling", None) or 1.0)


def _why_not(path: str, error: Exception, trust_remote_code: bool) -> ConfigError:
    """Say what is wrong with a path in the user's words."""
    folder = Path(path)
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if folder.is_dir() and not (folder / "config.json").exists():
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        return ConfigError(
            f"model {path}: expected a Transformers folder with a config.json; it holds {found}. Give the folder that "
            "save_pretrained wrote."
        )
    if not folder.exists() and isinstance(error, OSError):
        return ConfigError(
            f"model {path}: no such folder, and not available as a hub name ({first_line}). Give --model a folder "
            "with config.json and weights, or the name of a model that is in the cache or can be downloaded."
        )
    if pickled := sorted(file.name for file in folder.glob("*.bin")):
        return ConfigError(
            f"model {path}: expected weights in safetensors; {pickled[0]} is a pickle, which can run code when it is "
            "read, so it is not. Where you trust it: python -c 'from transformers import AutoModelForCausalLM as M; "
            f'M.from_pretrained("{path}").save_pretrained("{path}-safetensors")\' and copy the tokenizer there'
        )
    if isinstance(error, OSError | SafetensorError):
        return ConfigError(f"model {path}: cannot be read: {first_line}")
    hint = (
        ""
        if trust_remote_code
        else " If it comes with its own code, --model.trust_remote_code true runs it."
    )
    return ConfigError(
        f"model {path}: not a causal language model that can be loaded: {first_line}{hint}"
    )
