"""Conversion of the contract's requests to vLLM's, and of vLLM's outputs to completions. Functions import vLLM."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Completion, EngineSpec, GenerationRequest, Stop

from .names import ANSWER

if TYPE_CHECKING:
    from vllm import CompletionOutput, SamplingParams

SEED_BITS = 63
"""Number of bits of a seed. Some of vLLM's samplers keep seeds as signed 64-bit integers, where -1 means no seed."""
_NAMED = 8
"""Number of sequences that a message names."""


def padding(spec: EngineSpec, vocab_size: int) -> tuple[int, ...]:
    """Return the ids of a model that no token has, which are never sampled.

    Args:
        vocab_size: rows of the model's output head.

    Raises:
        ConfigError: an end of a turn is none of the model's ids.
    """
    if wrong := [token for token in spec.eos_token_ids if not 0 <= token < vocab_size]:
        raise ConfigError(
            f"end-of-sequence ids {wrong} are outside of the model's vocabulary of {vocab_size}; the "
            f"tokenizer of {spec.model_path} does not belong to its weights",
            code="model/end-token-unknown",
        )
    return () if spec.vocabulary is None else spec.vocabulary.unused(vocab_size)


def sampling_params(
    request: GenerationRequest,
    seed: int,
    limit: int,
    spec: EngineSpec,
    never_sampled: Sequence[int] = (),
    name: str = "",
) -> SamplingParams:
    """Return vLLM's sampling parameters for one completion of at most ``limit`` tokens.

    Args:
        never_sampled: tokens without probability. vLLM lays the bias on the logits before anything else, so the
            log-probs are those of the distribution without these tokens.
        name: name by which the workers keep what a grammar allowed.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    wanted = request.sampling
    grammar = wanted.grammar
    return SamplingParams(
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        min_p=wanted.min_p,
        seed=seed % (1 << SEED_BITS),
        max_tokens=limit,
        # Where a grammar ends an answer, nothing else is allowed.
        min_tokens=0 if grammar else min(wanted.min_new_tokens, limit),
        # The spec's end-of-sequence tokens replace the tokenizer's. vLLM keeps stop tokens in the output.
        ignore_eos=True,
        stop_token_ids=list(spec.eos_token_ids),
        stop=list(wanted.stop),
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        detokenize=bool(wanted.stop),
        # 0 asks for the log-prob of the sampled token only. Flat lists cost less than a dictionary for each token.
        logprobs=0 if wanted.logprobs else None,
        flat_logprobs=True,
        logit_bias=dict.fromkeys(never_sampled, -math.inf) or None,
        structured_outputs=StructuredOutputsParams(grammar=grammar) if grammar else None,
        extra_args={ANSWER: name} if grammar else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def require_same_prompt(request: GenerationRequest, used: Sequence[int] | None) -> None:
    """Refuse an answer that vLLM gave to other tokens than those that are trained.

    Args:
        used: tokens of the prompt that vLLM generated from.

    Raises:
        RolloutError: the tokens differ, as when vLLM expands an image too.
    """
    wanted = request.prompt_ids
    if used is None or tuple(used) == wanted:
        return
    pairs = enumerate(zip(wanted, used, strict=False))
    place = next((at for at, (ours, theirs) in pairs if ours != theirs), None)
    where = min(len(wanted), len(used)) if place is None else place
    raise RolloutError(
        f"request {request.uid}: vLLM generated from {len(used)} tokens, and the prompt has {len(wanted)}; "
        f"expected the same tokens, and they differ from token {where} on. Were images expanded twice?",
        code="vllm/other-prompt",
    )


def completion(
    request: GenerationRequest,
    output: CompletionOutput,
    versions: list[tuple[int, int]],
    routes: NDArray[np.signedinteger] | None = None,
) -> Completion:
    """Return vLLM's output as the contract's completion.

    Args:
        versions: pairs (index of the first token, version of the weights that wrote the tokens from there on).
        routes: ``Completion.expert_routes``.

    Raises:
        RolloutError: a log-prob that was asked for is missing or not a number.
    """
    token_ids = np.asarray(output.token_ids, dtype=np.int32)
    asked = request.sampling.logprobs
    logprobs = _logprobs(output) if asked else np.full(len(token_ids), np.nan, dtype=np.float32)
    if asked and (len(logprobs) != len(token_ids) or not np.isfinite(logprobs).all()):
        raise RolloutError(
            f"request {request.uid}: vLLM returned {len(logprobs)} log-probs for {len(token_ids)} tokens, of which "
            f"{int(np.isfinite(logprobs).sum())} are finite; the weights hold NaN or infinity, or this version of "
            "vLLM is not supported",
            code="vllm/log-probs",
        )
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        weight_version=_version_of_each(len(token_ids), versions),
        stop=_stop(output),
        expert_routes=routes,
    )


def request_failed(request: GenerationRequest, what: str) -> RolloutError:
    """Return the error of a request that gets no answer."""
    return RolloutError(f"request {request.uid}: {what}", code="engine/request-failed")


def require_idle(what: str, running: Iterable[str], fix: str) -> None:
    """Refuse a call that may not come while sequences are being written.

    Args:
        running: names of the sequences.
        fix: what has to come before the call.

    Raises:
        RolloutError: there are some.
    """
    names = list(running)
    if not names:
        return
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    raise RolloutError(
        f"{what} while {len(names)} sequences are being written ({', '.join(names[:_NAMED])}{more}); {fix}",
        code="engine/wrong-state",
    )


def _logprobs(output: CompletionOutput) -> NDArray[np.float32]:
    """Return (A,) log-probs of the sampled tokens, which are the first entries at their positions."""
    flat = output.logprobs
    if flat is None:
        return np.empty(0, dtype=np.float32)
    # `flat_logprobs` makes vLLM return flat lists, not the dictionaries of the other type in its union.
    starts = np.asarray(flat.start_indices, dtype=np.int64)  # type: ignore[union-attr]
    return np.asarray(flat.logprobs, dtype=np.float32)[starts]  # type: ignore[union-attr]


def _version_of_each(num_tokens: int, versions: list[tuple[int, int]]) -> NDArray[np.int32]:
    column = np.empty(num_tokens, dtype=np.int32)
    for start, version in versions:
        column[start:] = version
    return column


def _stop(output: CompletionOutput) -> Stop:
    if output.finish_reason == "length":
        return Stop.LENGTH
    if output.finish_reason != "stop":
        return Stop.ABORTED
    return Stop.STRING if isinstance(output.stop_reason, str) else Stop.EOS


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return when none of them runs any more."""
    pending = list(tasks)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
