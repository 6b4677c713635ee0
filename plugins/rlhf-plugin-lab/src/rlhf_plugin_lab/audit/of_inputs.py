"""Hypotheses on what the model was given: positions, padding, template, context, token ids, and a cached beginning."""

from __future__ import annotations

from dataclasses import replace

from .case import Case, Gap, Variants
from .forward import Prefix
from .search import log_grid, smallest, smallest_whole

_GAPS = (*range(-4, 0), *range(1, 17))
_SCALES = log_grid(1 / 16, 16.0, 13)
_MOST_PADS, _MOST_DROPPED, _MOST_OFFSET, _MOST_PREFIX = 8, 16, 16, 32
_BLOCKS = (4, 8, 16, 32, 64, 128)


def positions(case: Case, gap: Gap) -> Variants:
    """Yield readings whose positions jump at the first action, begin again there, or are scaled. A shift of all is none
    to relative positions."""
    for size in _GAPS:
        yield f"positions of actions off by {size}", replace(case.plain, position_gap=size)
    yield "positions begin again at the first action", replace(case.plain, restart=True)
    found = smallest(
        lambda value: gap(replace(case.plain, position_scale=value)), _SCALES, gap(case.plain)
    )
    if found is not None:
        yield f"positions times {found:.4g}", replace(case.plain, position_scale=found)


def padding(case: Case, gap: Gap) -> Variants:
    """Yield readings with padding that is attended to: as much in each row, or up to a common length."""
    prompts = [each.num_prompt for each in case.sequences]
    rows = [len(each.token_ids) for each in case.sequences]
    tokens = {case.special[name]: name for name in ("eos", "pad") if name in case.special}
    for token, name in tokens.items():
        for count in range(1, _MOST_PADS + 1):
            words = f"{count} tokens {name} in front attended to"
            yield words, replace(case.plain, front=(token,) * count)
        for lengths, of_rows in ((prompts, False), (rows, True)):
            if min(lengths) == max(lengths):
                continue
            for length in range(max(lengths), max(lengths) + _MOST_PADS + 1):
                what = "rows" if of_rows else "prompts"
                yield (
                    f"{what} filled to {length} tokens by {name}, which is attended to",
                    replace(case.plain, front=(token,), fill=length, fill_rows=of_rows),
                )


def template(case: Case, gap: Gap) -> Variants:
    """Yield readings of a prompt that begins or ends otherwise, as other templates make it."""
    yield "the prompt's first token missing", replace(case.plain, drop_first=1)
    for count in range(1, _MOST_DROPPED + 1):
        yield f"the prompt's last {count} tokens missing", replace(case.plain, drop_last=count)
    for name in ("bos", "eos"):
        if name in case.special:
            front = (case.special[name],)
            yield f"the token {name} in front of the prompt", replace(case.plain, front=front)


def context(case: Case, gap: Gap) -> Variants:
    """Yield readings that see an end of the prompt alone: as many tokens of each, or all but as many."""
    longest = max(each.num_prompt for each in case.sequences)
    kept = smallest_whole(lambda value: gap(replace(case.plain, keep_prompt=value)), longest)
    yield f"the last {kept} tokens of prompts alone", replace(case.plain, keep_prompt=kept)
    for count in range(2, min(_MOST_DROPPED, longest - 1) + 1):
        yield f"the prompt's first {count} tokens cut off", replace(case.plain, drop_first=count)


def tokenizer(case: Case, gap: Gap) -> Variants:
    """Yield readings of token ids that are shifted, as those of a vocabulary with more or fewer tokens in front."""
    for size in range(1, _MOST_OFFSET + 1):
        for offset in (size, -size):
            yield f"token ids off by {offset}", replace(case.plain, id_offset=offset)


def stale_prefix(case: Case, gap: Gap) -> Variants:
    """Yield readings in which the other weights computed keys and values of the prompt's beginning."""
    shortest = min(each.num_prompt for each in case.sequences)
    for name, model in case.others.items():
        found = [
            ("the prompt but its last token", Prefix(model=model)),
            ("the prompt", Prefix(model=model, spare=0)),
        ]
        found += [
            (f"whole blocks of {block} tokens of the prompt", Prefix(model=model, block=block))
            for block in _BLOCKS
        ]
        found += [
            (f"the prompt's first {count} tokens", Prefix(model=model, longest=count))
            for count in range(1, min(shortest - 1, _MOST_PREFIX) + 1)
        ]
        for words, prefix in found:
            yield f"{words} cached from weights of {name}", replace(case.plain, prefix=prefix)
