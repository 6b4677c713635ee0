"""Log-probs of a recorded sequence by Transformers' own model, one sequence at a time, without cache or padding."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core.lazy import NDArray, np, torch

from .sequences import Recorded

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A way to compute log-probs from a sequence. The defaults with the run's temperature are the plain forward."""

    model: PreTrainedModel
    temperature: float
    """Divides the logits."""
    top_p: float = 1.0
    """Mass of the most probable tokens among which the distribution is renormalized."""
    keep_prompt: int | None = None
    """Number of tokens of the prompt's end that are seen; None: all."""
    drop_first: int = 0
    """Number of tokens of the prompt's start that are not seen."""
    pads: tuple[int, ...] = ()
    """Tokens in front that are attended to as if they were text."""
    position_gap: int = 0
    """Positions left out between the prompt and the first action."""
    banned: tuple[int, ...] = ()
    """Tokens that get no probability."""


def logprobs_of(reading: Reading, sequence: Recorded) -> NDArray[np.float64]:
    """Return (T,) log-probs in nats of the actions, NaN at the other tokens."""
    keep = sequence.num_prompt if reading.keep_prompt is None else reading.keep_prompt
    start = max(sequence.num_prompt - keep, min(reading.drop_first, sequence.num_prompt - 1), 0)
    seen = torch.from_numpy(sequence.token_ids[start:])
    pads = torch.tensor(reading.pads, dtype=torch.int64)
    inputs = torch.cat([pads, seen])
    positions = torch.arange(len(inputs))
    positions[len(pads) + sequence.num_prompt - start :] += reading.position_gap
    with torch.no_grad():
        # Without a mask Transformers takes a jump of positions for the beginning of another packed sequence.
        output = reading.model(
            input_ids=inputs[None],
            attention_mask=torch.ones_like(inputs)[None],
            position_ids=positions[None],
            use_cache=False,
        )
    logits = output.logits[0, len(pads) : -1].double() / reading.temperature  # (T - start - 1, V)
    if reading.banned:
        logits[:, list(reading.banned)] = -torch.inf
    logprobs = within_top_p(torch.log_softmax(logits, dim=-1), reading.top_p)
    chosen = logprobs.gather(1, seen[1:, None])[:, 0].numpy()
    full = np.full(len(sequence.token_ids), np.nan)
    full[start + 1 :] = chosen
    return np.where(sequence.action_mask, full, np.nan)


def within_top_p(logprobs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return log-probs renormalized within the smallest set of most probable tokens that has the mass ``top_p``.

    Tokens outside get -inf; ``top_p=1`` returns the argument.
    """
    if top_p >= 1.0:
        return logprobs
    ordered, places = logprobs.exp().sort(dim=-1, descending=True)
    outside = ordered.cumsum(dim=-1) - ordered >= top_p
    mask = torch.zeros_like(outside).scatter(-1, places, outside)
    return torch.log_softmax(logprobs.masked_fill(mask, -torch.inf), dim=-1)


def with_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy of a model whose weights and arithmetic have a dtype."""
    return copy.deepcopy(model).to(dtype)


def with_rope_theta(model: PreTrainedModel, theta: float) -> PreTrainedModel:
    """Return a copy of a model with another base of its rotary positions."""
    config = copy.deepcopy(model.config)
    config.rope_parameters = {**config.rope_parameters, "rope_theta": theta}
    changed = type(model)(config)
    changed.load_state_dict(model.state_dict())
    return changed.eval()


def with_rounded_weights(model: PreTrainedModel, bits: int) -> PreTrainedModel:
    """Return a copy of a model whose linear layers, but the head, went through symmetric integers of some bits, with a
    scale for each row: w' = s round(w / s), s = max|w| / (2^(bits-1) - 1)."""
    changed, largest = copy.deepcopy(model), 2 ** (bits - 1) - 1
    head = changed.get_output_embeddings()
    for layer in changed.modules():
        if isinstance(layer, torch.nn.Linear) and layer is not head:
            weight = layer.weight.data
            scale = (weight.abs().amax(dim=1, keepdim=True) / largest).clamp_min(1e-12)
            layer.weight.data = (weight / scale).round() * scale
    return changed


def with_tied_head(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model whose head has the weights of its embeddings."""
    changed = copy.deepcopy(model)
    changed.get_output_embeddings().weight = changed.get_input_embeddings().weight
    return changed
