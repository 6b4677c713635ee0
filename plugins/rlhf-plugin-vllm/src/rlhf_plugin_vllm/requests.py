"""Between the contract's requests and completions, and vLLM's. Imports vLLM only where it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlhf_core import RolloutError
from rlhf_core.contracts import Completion, EngineSpec, GenerationRequest, Stop

if TYPE_CHECKING:
    from vllm import CompletionOutput, SamplingParams

SEED_BITS = 63
"""Some of vLLM's samplers keep seeds as signed 64-bit integers, and -1 means none."""


def sampling_params(
    request: GenerationRequest, seed: int, limit: int, spec: EngineSpec
) -> SamplingParams:
    """Return vLLM's parameters for one completion, of ``limit`` tokens at most."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    wanted = request.sampling
    return SamplingParams(
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        min_p=wanted.min_p,
        seed=seed % (1 << SEED_BITS),
        max_tokens=limit,
        min_tokens=min(wanted.min_new_tokens, limit),
        # The spec's end-of-sequence tokens replace the tokenizer's; as stop tokens they stay in the output.
        ignore_eos=True,
        stop_token_ids=list(spec.eos_token_ids),
        stop=list(wanted.stop),
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        detokenize=bool(wanted.stop),
        # One number for each token, kept in flat lists instead of a dictionary per token.
        logprobs=0 if wanted.logprobs else None,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def completion(
    request: GenerationRequest, output: CompletionOutput, versions: list[tuple[int, int]]
) -> Completion:
    """Return the contract's form of what vLLM wrote.

    Args:
        versions: (index of the first token, version of the weights) whenever the version changed.

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
            "vLLM is not supported"
        )
    return Completion(
        token_ids=token_ids,
        logprobs=logprobs,
        weight_version=_version_of_each(len(token_ids), versions),
        stop=_stop(output),
    )


def _logprobs(output: CompletionOutput) -> NDArray[np.float32]:
    """(A,) The first entry at each position is the sampled token's."""
    flat = output.logprobs
    if flat is None:
        return np.empty(0, dtype=np.float32)
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
