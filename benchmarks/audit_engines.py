"""Engines with one fault each, for ``benchmarks/audits.py``: own code, a token at a time with a cache, or attention
of its own. None of it is shared with ``rlhf audit``."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import torch
from transformers import PreTrainedModel

Engine = Callable[[PreTrainedModel, list[int], int], torch.Tensor]
"""Model, token ids and length of the prompt -> (T, V) log-probs, row t those of token t + 1."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An engine whose log-probs replace the sampler's column."""

    cause: str
    """The right name."""
    detail: str
    """What is wrong, with its parameter."""
    engine: Engine
    family: str = "qwen3"
    skips: frozenset[int] = field(default_factory=frozenset)
    """Tokens that the engine cannot sample: sequences with them are left out."""


def cached(
    model: PreTrainedModel,
    ids: Sequence[int],
    positions: Sequence[int] | None = None,
    prefix: PreTrainedModel | None = None,
    cut: int = 0,
) -> torch.Tensor:
    """Return (len(ids), V) logits, a token at a time; the first ``cut`` keys and values are those of ``prefix``."""
    past, rows = None, []
    for index, token in enumerate(ids):
        output = (prefix if prefix is not None and index < cut else model)(
            input_ids=torch.tensor([[token]]),
            position_ids=torch.tensor([[index if positions is None else positions[index]]]),
            past_key_values=past,
            use_cache=True,
        )
        past = output.past_key_values
        rows.append(output.logits[0, -1])
    return torch.stack(rows)


def plain(model: PreTrainedModel, ids: Sequence[int], prompt: int = 0) -> torch.Tensor:
    return cached(model, ids).float().log_softmax(-1)


def scaled(factor: float) -> Engine:
    return lambda model, ids, prompt: (cached(model, ids) * factor).log_softmax(-1)


def changed(change: Callable[[PreTrainedModel], object]) -> Engine:
    made: list[PreTrainedModel] = []

    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        if not made:
            made.append(copy.deepcopy(model))
            change(made[0])
        return plain(made[0], ids)

    return engine


def other_rope(theta: float) -> Callable[[PreTrainedModel], object]:
    def change(model: PreTrainedModel) -> None:
        size = model.config.head_dim
        model.model.rotary_emb.inv_freq.copy_(theta ** -(torch.arange(0, size, 2) / size))

    return change


def noisy(model: PreTrainedModel, size: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.data += size * weight.data.std() * torch.randn(weight.shape, generator=generator)


def low_bits(bits: int) -> Callable[[PreTrainedModel], object]:
    def change(model: PreTrainedModel) -> None:
        for name, weight in model.named_parameters():
            if name.endswith("_proj.weight"):
                for row in weight.data:
                    step = float(row.abs().max()) / (2 ** (bits - 1) - 1)
                    row.copy_(torch.round(row / step) * step)

    return change


def tied(model: PreTrainedModel) -> None:
    model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)


def moved(places: Callable[[int, int], list[int]]) -> Engine:
    return lambda model, ids, prompt: cached(model, ids, places(prompt, len(ids))).log_softmax(-1)


def behind(front: Callable[[int], list[int]]) -> Engine:
    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        before = front(prompt)
        return plain(model, before + ids)[len(before) :]

    return engine


def without(places: Callable[[int], range]) -> Engine:
    """Return an engine that does not see some places of the prompt."""

    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        left = [each for each in range(len(ids)) if each not in places(prompt)]
        rows = plain(model, [ids[each] for each in left])
        full = torch.zeros(len(ids), rows.shape[1])
        # The row of the last token that is seen predicts the first action, whatever stands between them.
        full[left] = rows
        full[prompt - 1] = rows[sum(each < prompt for each in left) - 1]
        return full

    return engine


def banned(token: int) -> Engine:
    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        rows = plain(model, ids)
        return rows - torch.log1p(-rows[:, token : token + 1].exp())

    return engine


def stale_prefix(stale: PreTrainedModel, block: int) -> Engine:
    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        cut = (prompt - 1) // block * block
        return cached(model, ids, None, stale, cut).log_softmax(-1)

    return engine


@contextmanager
def own_attention(
    sees: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    factor: float = 1.0,
    rate: float = 0.0,
) -> Iterator[None]:
    """Replace torch's attention by own arithmetic: what a query's place sees of a key's, factor and dropout."""
    saved = torch.nn.functional.scaled_dot_product_attention

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: object,
        scale: float | None = None,
        **more: object,
    ) -> torch.Tensor:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.mT * factor * (scale or 1 / math.sqrt(query.shape[-1]))
        keys = torch.arange(key.shape[2])[None]
        queries = torch.arange(key.shape[2] - query.shape[2], key.shape[2])[:, None]
        mask = keys <= queries if sees is None else sees(queries, keys)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return torch.dropout(weights, rate, rate > 0.0) @ value

    torch.nn.functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = saved


def at_once(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)


def windowed(size: int) -> Engine:
    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        with own_attention(lambda query, key: (key <= query) & (key > query - size)):
            return at_once(model, ids)

    return engine


def prompt_sees_itself(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
    with own_attention(lambda query, key: (key <= query) | ((key < prompt) & (query < prompt))):
        return at_once(model, ids)


def scores_times(factor: float) -> Engine:
    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        with own_attention(factor=factor):
            return at_once(model, ids)

    return engine


def dropped_out(rate: float, place: str) -> Engine:
    """Return an engine with dropout; each call goes on in torch's global random state."""

    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        if place == "attention":
            with own_attention(rate=rate):
                return plain(model, ids)
        with hooked(
            [layer.mlp for layer in model.model.layers],
            lambda *each: torch.dropout(each[-1], rate, True),
        ):
            return plain(model, ids)

    return engine


@contextmanager
def hooked(modules: Sequence[torch.nn.Module], hook: Callable[..., object]) -> Iterator[None]:
    """Give modules a hook that replaces their output, for as long as the context lasts."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def routed(chosen: int, shift: int) -> Engine:
    """Return an engine of a model with experts that chooses as many of them and takes others by their ids."""

    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        def route(router: torch.nn.Module, given: tuple[torch.Tensor], output: object) -> object:
            scores = given[0].reshape(-1, given[0].shape[-1]) @ router.weight.T
            weights, experts = scores.softmax(-1).topk(chosen, -1)
            if router.norm_topk_prob:
                weights = weights / weights.sum(-1, keepdim=True)
            return scores, weights, (experts + shift) % scores.shape[-1]

        with hooked([layer.mlp.gate for layer in model.model.layers], route):
            return plain(model, ids)

    return engine


def faults_of(
    draw: Random, stale: PreTrainedModel, eos: int, pad: int, longest: int
) -> dict[str, Fault]:
    """Return the faults of a seed: fault -> engine, with parameters drawn from ranges."""
    kind = draw.choice([torch.bfloat16, torch.float16])
    temperature = draw.choice([draw.uniform(0.4, 0.9), draw.uniform(1.1, 2.5)])
    factor = draw.choice([draw.uniform(0.3, 0.9), draw.uniform(1.1, 3.0)])
    theta = math.exp(draw.choice([draw.uniform(6.0, 8.5), draw.uniform(10.0, 16.0)]))
    bits, gap = draw.choice([4, 8]), draw.randint(1, 16)
    pads, fill = draw.randint(1, 8), longest + draw.randint(0, 4)
    last, kept, block = draw.randint(1, 4), draw.randint(1, 3), draw.choice([1, 2, 4])
    window, scale = draw.randint(2, 8), draw.choice([draw.uniform(0.3, 0.8), draw.uniform(1.25, 3)])
    rate, place = draw.uniform(0.05, 0.3), draw.choice(["attention", "feed-forward"])
    chosen, shift = draw.choice([1, 3]), draw.randint(1, 3)
    first = draw.random() < 0.5

    def template(prompt: int) -> range:
        return range(1) if first else range(max(1, prompt - last), prompt)

    return {
        "dtype": Fault(
            "dtype", str(kind).removeprefix("torch."), changed(lambda model: model.to(kind))
        ),
        "temperature": Fault("temperature", f"{temperature:.4g}", scaled(1 / temperature)),
        "logit scale": Fault("temperature", f"times {factor:.4g}", scaled(factor)),
        "rope": Fault("rope", f"theta {theta:.4g}", changed(other_rope(theta))),
        "quantized base": Fault("quantized", f"{bits} bits", changed(low_bits(bits))),
        "tied head": Fault("tied_head", "", changed(tied)),
        "stale weights": Fault("weights", "", lambda model, ids, prompt: plain(stale, ids)),
        "stale prefix": Fault("stale_prefix", f"blocks of {block}", stale_prefix(stale, block)),
        "positions": Fault(
            "positions",
            f"gap of {gap}",
            moved(lambda prompt, length: [*range(prompt), *range(prompt + gap, length + gap)]),
        ),
        "positions anew": Fault(
            "positions",
            "from 0 at the answer",
            moved(lambda prompt, length: [*range(prompt), *range(length - prompt)]),
        ),
        "padding": Fault("padding", f"{pads} pads", behind(lambda prompt: [pad] * pads)),
        "padding to a length": Fault(
            "padding", f"prompts of {fill}", behind(lambda prompt: [pad] * (fill - prompt))
        ),
        "template": Fault(
            "template",
            "first token missing" if first else f"last {last} missing",
            without(template),
        ),
        "context": Fault(
            "context", f"last {kept} tokens", without(lambda prompt: range(prompt - kept))
        ),
        "eos": Fault("eos", "banned", banned(eos), skips=frozenset({eos})),
        "kernel: window": Fault("kernel", f"{window} tokens", windowed(window)),
        "kernel: not causal": Fault("kernel", "in the prompt", prompt_sees_itself),
        "kernel: scale": Fault("kernel", f"times {scale:.4g}", scores_times(scale)),
        "dropout": Fault("dropout", f"{rate:.2g}, {place}", dropped_out(rate, place)),
        "routes: count": Fault(
            "routes", f"{chosen} experts, not 2", routed(chosen, 0), family="qwen3_moe"
        ),
        "routes: ids": Fault("routes", f"off by {shift}", routed(2, shift), family="qwen3_moe"),
    }
