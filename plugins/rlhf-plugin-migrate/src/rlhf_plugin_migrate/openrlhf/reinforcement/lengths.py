"""Rules of sizes: lengths of prompts and responses, micro-batches, and responses per update."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_MICRO_BATCH = "train.max_tokens_per_micro_batch"
_OLD_LENGTH = 1024
"""Default of both lengths up to OpenRLHF 0.9."""


def longest(source: SourceOptions) -> int:
    """Return the number of tokens of prompt and response together."""
    if source.given("prompt_max_len", "generate_max_len") and not source.given("data.max_len"):
        return _old(source, "prompt_max_len") + _old(source, "generate_max_len")
    return source.whole("data.max_len")


def set_lengths(source: SourceOptions, out: Outcome) -> None:
    """Set the longest prompt, response and sequence.

    OpenRLHF has a limit for prompt and response together (``data.max_len``) and perhaps one for the response. A prompt
    that leaves no room for the longest response is cut at its start there, and is left out and counted here.
    """
    whole = longest(source)
    total = ("data.max_len", "prompt_max_len", "generate_max_len")
    out.set("rollout.max_length", whole, *total)
    response = "rollout.max_new_tokens"
    limit = source.count(response) if source.given(response) else source.value("generate_max_len")
    multi_turn = source.given("train.agent_func_path")
    if isinstance(limit, int) and not multi_turn:
        out.set(response, limit, response, "generate_max_len")
    else:
        comment = "a turn may take what rollout.max_length leaves"
        sources = (response, "generate_max_len") if limit else ("data.max_len",)
        out.set(response, whole, *sources, comment=comment)
        if limit:
            how = "with an agent OpenRLHF leaves room for this many and lets a turn take what is left of the whole"
            out.differs(response if source.given(response) else "generate_max_len", how)
    room = max(whole - int(limit), 1) if isinstance(limit, int) else whole - 1
    if source.given("prompt_max_len"):
        room = min(_old(source, "prompt_max_len"), whole - 1)
    room_from = (response, "prompt_max_len") if limit else total
    out.set("data.max_prompt_tokens", min(room, whole - 1), *room_from)
    out.set("data.on_bad_row", "skip", *total)
    out.differs(
        "data.max_len",
        "a prompt that leaves no room is left out and counted; OpenRLHF cuts its start off",
    )


def _old(source: SourceOptions, name: str) -> int:
    return source.whole(name) if source.given(name) else _OLD_LENGTH


def set_micro_batches(source: SourceOptions, out: Outcome) -> None:
    """Set the number of packed tokens in a micro-batch, on which memory depends and no result."""
    whole = longest(source)
    if source.flag("train.dynamic_batch_enable"):
        budget = source.whole("train.max_tokens_per_gpu")
        flags = ("train.dynamic_batch_enable", "train.max_tokens_per_gpu")
        if budget < whole:
            out.differs(
                "train.max_tokens_per_gpu",
                f"a micro-batch holds at least one sequence of rollout.max_length = {whole} tokens",
            )
        out.set(_MICRO_BATCH, max(budget, whole), *flags)
        out.nothing(
            ("train.micro_batch_size", "rollout.micro_batch_size"),
            "OpenRLHF does not read it with --train.dynamic_batch_enable",
        )
        scoring = source.value("rollout.max_tokens_per_gpu")
        note = out.nothing if scoring in (None, budget) else out.differs
        note(
            "rollout.max_tokens_per_gpu",
            f"passes without gradients have the same limit, {_MICRO_BATCH}",
        )
    else:
        size = source.whole("train.micro_batch_size")
        comment = f"{size} x {whole}; a matter of memory, the gradient does not depend on it"
        out.set(_MICRO_BATCH, size * whole, "train.micro_batch_size", comment=comment)
        why = f"passes without gradients have the same limit, {_MICRO_BATCH}"
        out.nothing("rollout.micro_batch_size", why)
        out.nothing(
            ("train.max_tokens_per_gpu", "rollout.max_tokens_per_gpu"),
            "OpenRLHF reads it only with --train.dynamic_batch_enable",
        )


def set_batch(source: SourceOptions, out: Outcome) -> None:
    """Set the number of responses per update: the largest that divides a rollout batch, up to OpenRLHF's."""
    sequences = source.whole("rollout.batch_size") * source.whole("rollout.n_samples_per_prompt")
    wanted = source.whole("train.batch_size")
    size = largest_divisor(sequences, wanted)
    flag = "train.batch_size"
    comment = ""
    if size != wanted:
        comment = f"{wanted} does not divide the {sequences} responses of a rollout batch"
        out.differs(flag, f"{comment}; OpenRLHF carries the remaining gradient into the next step")
    out.set(flag, size, flag, comment=comment)


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of ``number`` that is at most ``limit``, and at least 1."""
    return next(size for size in range(max(min(limit, number), 1), 0, -1) if number % size == 0)
