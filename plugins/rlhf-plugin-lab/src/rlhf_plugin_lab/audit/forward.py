"""Log-probs of a recorded sequence by Transformers' own model, one sequence at a time and without padding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from rlhf_core.lazy import NDArray, np, torch

from .pixels import Pixels
from .sequences import Recorded

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Sight(StrEnum):
    """Tokens that attention sees."""

    CAUSAL = "causal"
    PROMPT = "prompt"
    """The prompt sees all of itself."""
    ALL = "all"
    """Tokens see all others, later ones too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A beginning of the prompt whose keys and values other weights computed."""

    model: PreTrainedModel
    block: int = 1
    """The beginning has whole blocks alone."""
    spare: int = 1
    """Number of tokens at the prompt's end that are no part of it."""
    longest: int | None = None
    """Largest number of tokens."""

    def length(self, num_prompt: int) -> int:
        """Return the number of tokens of the beginning."""
        most = num_prompt - self.spare
        whole = most // self.block * self.block
        return max(0, whole if self.longest is None else min(whole, self.longest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A way to compute log-probs from a sequence. The defaults with the run's sampling are the plain forward."""

    model: PreTrainedModel
    temperature: float
    """Divides the logits."""
    top_k: int = 0
    """Number of the most probable tokens that are kept; 0: all."""
    top_p: float = 1.0
    """Mass of the most probable tokens that are kept."""
    min_p: float = 0.0
    """Share of the largest probability that a kept token has."""
    soft_edges: bool = False
    """Whether tokens that are not kept have log-probs as if they were, for types whose rounding changes which are."""
    logit_cap: float | None = None
    """Bound c of the logits: c tanh(logits / c)."""
    banned: tuple[int, ...] = ()
    """Tokens that get no probability."""
    ends: tuple[int, ...] = ()
    """Tokens that get no probability among the first ``min_new_tokens`` of a turn."""
    min_new_tokens: int = 0
    keep_prompt: int | None = None
    """Number of tokens of the prompt's end that are seen; None: all."""
    drop_first: int = 0
    """Number of tokens of the prompt's start that are not seen."""
    drop_last: int = 0
    """Number of tokens of the prompt's end that are not seen."""
    front: tuple[int, ...] = ()
    """Tokens in front that are attended to as if they were text."""
    fill: int = 0
    """Length to which ``front[0]`` fills the prompt, or the row; 0: ``front`` is taken as it is."""
    fill_rows: bool = False
    """Whether ``fill`` is the length of rows, not of prompts."""
    position_gap: int = 0
    """Positions left out between the prompt and the first action."""
    restart: bool = False
    """Whether positions begin again at the first action."""
    position_scale: float = 1.0
    """Factor of the positions."""
    id_offset: int = 0
    """Added to each token id, modulo the vocabulary."""
    window: int | None = None
    """Number of tokens that attention sees, the token itself among them; None: all."""
    sight: Sight = Sight.CAUSAL
    prefix: Prefix | None = None
    pixels: Pixels | None = None
    """Images as a model that sees gets them; its own forward then chooses positions and what attention sees."""


def logprobs_of(reading: Reading, sequence: Recorded) -> NDArray[np.float64]:
    """Return (T,) log-probs in nats of the actions, NaN at the other tokens."""
    seen = _seen(reading, sequence)  # (S,) places
    ids = torch.from_numpy(sequence.token_ids)
    if reading.id_offset:
        ids = (ids + reading.id_offset) % int(reading.model.config.get_text_config().vocab_size)
    front = _front(reading, sequence)
    inputs = torch.cat([torch.tensor(front, dtype=torch.int64), ids[seen]])
    prompt = len(front) + int((seen < sequence.num_prompt).sum())
    with torch.no_grad():
        if reading.pixels is None:
            logits = _logits(reading, inputs, prompt)
        else:
            logits = reading.pixels.logits(reading.model, inputs, sequence.images)
    logits = logits[len(front) : -1].double()
    if reading.ends and reading.min_new_tokens:
        early = (
            torch.from_numpy(_places_in_turns(sequence.action_mask)[seen[1:]])
            < reading.min_new_tokens
        )
        logits[
            early[:, None] & torch.isin(torch.arange(logits.shape[1]), torch.tensor(reading.ends))
        ] = -torch.inf
    rows = truncated(
        _shaped(reading, logits),
        top_k=reading.top_k,
        top_p=reading.top_p,
        min_p=reading.min_p,
        soft=reading.soft_edges,
    )  # (S - 1, V)
    full = np.full(len(ids), np.nan)
    full[seen[1:]] = rows.gather(1, ids[seen][1:, None])[:, 0].numpy()
    return np.where(sequence.action_mask, full, np.nan)


def _seen(reading: Reading, sequence: Recorded) -> NDArray[np.int64]:
    """Return the places of the tokens that are seen; one token of the prompt is left at least."""
    prompt = sequence.num_prompt
    start = 0 if reading.keep_prompt is None else prompt - reading.keep_prompt
    start = max(0, start, min(reading.drop_first, prompt - 1))
    end = max(start + 1, prompt - reading.drop_last)
    return np.concatenate([np.arange(start, end), np.arange(prompt, len(sequence.token_ids))])


def _places_in_turns(action_mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return (T,) places of actions within their turn, from 0 on."""
    places = np.arange(len(action_mask))
    others = np.maximum.accumulate(
        np.where(action_mask, -1, places)
    )  # the last token that is no action
    return places - others - 1


def _front(reading: Reading, sequence: Recorded) -> list[int]:
    if not reading.fill:
        return list(reading.front)
    length = len(sequence.token_ids) if reading.fill_rows else sequence.num_prompt
    return list(reading.front[:1]) * max(0, reading.fill - length)


def _logits(reading: Reading, inputs: torch.Tensor, prompt: int) -> torch.Tensor:
    """Return (S, V) logits. Without a mask Transformers takes a jump of positions for another packed sequence."""
    length = len(inputs)
    positions = torch.arange(length)
    positions[prompt:] += -prompt if reading.restart else reading.position_gap
    if reading.position_scale != 1.0:
        positions = positions * reading.position_scale
    plain = reading.window is None and reading.sight is Sight.CAUSAL
    mask = torch.ones_like(inputs)[None] if plain else _mask(reading, length, prompt)
    cut = reading.prefix.length(prompt) if reading.prefix else 0
    if reading.prefix is None or not cut:
        output = reading.model(
            input_ids=inputs[None],
            attention_mask=mask,
            position_ids=positions[None],
            use_cache=False,
        )
        logits: torch.Tensor = output.logits[0]
        return logits
    first = reading.prefix.model(
        input_ids=inputs[None, :cut], position_ids=positions[None, :cut], use_cache=True
    )
    rest = reading.model(
        input_ids=inputs[None, cut:],
        attention_mask=mask,
        position_ids=positions[None, cut:],
        past_key_values=first.past_key_values,
        use_cache=True,
    )
    return torch.cat([first.logits[0], rest.logits[0]])


def _mask(reading: Reading, length: int, prompt: int) -> torch.Tensor:
    """Return a (1, 1, S, S) mask, 0 where a row's token sees a column's and the lowest number elsewhere."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None]
    sees = key <= query
    if reading.sight is Sight.PROMPT:
        sees = sees | ((key < prompt) & (query < prompt))
    elif reading.sight is Sight.ALL:
        sees = torch.ones_like(sees)
    if reading.window is not None:
        sees = sees & (query - key < reading.window)
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(length, length).masked_fill(~sees, lowest)[None, None]


def _shaped(reading: Reading, logits: torch.Tensor) -> torch.Tensor:
    if reading.logit_cap is not None:
        logits = reading.logit_cap * (logits / reading.logit_cap).tanh()
    logits = logits / reading.temperature
    if reading.banned:
        logits[:, list(reading.banned)] = -torch.inf
    return torch.log_softmax(logits, dim=-1)


def truncated(
    logprobs: torch.Tensor,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    soft: bool = False,
) -> torch.Tensor:
    """Return (N, V) log-probs renormalized within the tokens that are kept: log p - log of the mass that is kept.

    ``top_k=0``, ``top_p=1`` and ``min_p=0`` return the argument.

    Args:
        soft: tokens that are not kept have the same difference, in place of -inf: what they would have in the place
            of one that is as likely.
    """
    kept = torch.ones_like(logprobs, dtype=torch.bool)
    if 0 < top_k < logprobs.shape[-1]:
        kept &= logprobs >= logprobs.topk(top_k, dim=-1).values[:, -1:]
    if top_p < 1.0:
        probs = logprobs.masked_fill(~kept, -torch.inf).softmax(dim=-1)
        ordered, places = probs.sort(dim=-1, descending=True)
        inside = ordered.cumsum(dim=-1) - ordered < top_p
        kept &= torch.zeros_like(kept).scatter(-1, places, inside)
    if min_p > 0.0:
        kept &= logprobs >= logprobs.amax(dim=-1, keepdim=True) + torch.tensor(min_p).double().log()
    if bool(kept.all()):
        return logprobs
    mass = logprobs.masked_fill(~kept, -torch.inf).logsumexp(dim=-1, keepdim=True)
    rest = logprobs - mass
    return rest if soft else rest.masked_fill(~kept, -torch.inf)
