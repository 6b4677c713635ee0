"""Answers below a grammar: vLLM's guided decoding holds them to it, and its workers measure what it left to choose.

The backend is llguidance, whose grammars the contract's are. Functions import vLLM's packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core import RequestError, RolloutError
from rlhf_core.contracts import Completion, EngineSpec, GenerationRequest

from . import compat

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from .weights.workers import Workers


class Grammars:
    """Grammars of one engine's requests. What no grammar needs is not made, so other requests cost nothing."""

    def __init__(self, llm: AsyncLLM, workers: Workers, spec: EngineSpec) -> None:
        self._llm, self._workers, self._spec = llm, workers, spec
        self._tokenizer: Any = None
        self._first = asyncio.Lock()

    async def require(self, request: GenerationRequest, never_sampled: Sequence[int]) -> None:
        """Return if vLLM will hold answers to the request's grammar, or if it has none.

        Args:
            never_sampled: tokens without probability, the same for all requests.

        Raises:
            RequestError: the grammar cannot be read, or this vLLM cannot enforce any, or not so that masses are known.
        """
        grammar = request.sampling.grammar
        if grammar is None:
            return
        async with self._first:
            if self._tokenizer is None:
                await self._prepare(request, never_sampled)
        if problem := self._matcher(grammar).get_error():
            raise RequestError(
                f"request {request.uid}: the form of the answer cannot be read: {problem[:200].strip()}",
                code="engine/form-unreadable",
            )

    async def masses(
        self, request: GenerationRequest, name: str, count: int, alive: Collection[str]
    ) -> NDArray[np.float32] | None:
        """Return (A,) the mass of what the grammar allowed at each token of an answer; None without a grammar.

        Args:
            name: name of the answer's request to vLLM.
            count: A.
            alive: names of all requests in flight.

        Raises:
            RolloutError: the workers did not measure each token.
        """
        if request.sampling.grammar is None:
            return None
        answers = await self._workers.ask("rlhf_take_masses", name, count, list(alive))
        # Each rank that has the logits measures the same; ranks of other stages have nothing.
        measured: list[float] = next((each for each in answers if each is not None), [])
        masses = np.asarray(measured, dtype=np.float32)
        if len(masses) != count or np.isnan(masses).any():
            raise RolloutError(
                f"{int(np.isfinite(masses).sum())} of an answer's {count} tokens were measured below its grammar; "
                "this version of vLLM is not supported",
                code="vllm/grammar-size",
            )
        return masses

    def finished(
        self,
        request: GenerationRequest,
        completion: Completion,
        masses: NDArray[np.float32] | None,
    ) -> Completion:
        """Return a completion with its masses.

        Raises:
            RequestError: the grammar led where the model has no token to go on with, and vLLM ended the answer there.
        """
        grammar = request.sampling.grammar
        if grammar is None:
            return completion
        token_ids = completion.token_ids.tolist()
        valid = self._matcher(grammar).validate_tokens(token_ids)
        if valid < len(token_ids):
            raise RequestError(
                f"request {request.uid}: no token of the model can be token {valid + 1} of an answer of this form",
                code="engine/form-without-tokens",
            )
        return replace(completion, allowed_mass=masses)

    def _matcher(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        return LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)

    async def _prepare(self, request: GenerationRequest, never_sampled: Sequence[int]) -> None:
        """Look whether vLLM enforces grammars here, and have the workers measure masses from now on."""
        from llguidance.hf import from_tokenizer

        problem = compat.no_grammars(self._llm.vllm_config)
        tokenizer: Any = self._llm.get_tokenizer()
        if not problem and tokenizer.eos_token_id not in self._spec.eos_token_ids:
            problem = (
                f"vLLM ends such an answer by the tokenizer's token {tokenizer.eos_token_id}, and answers end by "
                f"{list(self._spec.eos_token_ids)} here"
            )
        if not problem:
            rows = max(self._llm.model_config.get_vocab_size(), len(tokenizer))
            try:
                found = await asyncio.to_thread(from_tokenizer, tokenizer, rows)
            except ValueError as error:
                problem = f"llguidance cannot read the model's tokenizer ({error})"
        if problem:
            raise RequestError(
                f"request {request.uid} asks for an answer of a given form, which the engine vllm does not enforce "
                f"here: {problem}",
                code="engine/form-not-enforced",
            )
        await self._workers.ask("rlhf_measure_masses", list(never_sampled))
        self._tokenizer = found
