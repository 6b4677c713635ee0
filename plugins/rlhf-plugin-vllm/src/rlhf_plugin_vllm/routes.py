"""Experts that tokens went to, as vLLM tells them with its argument ``enable_return_routed_experts``.

vLLM has ids for all layers, those without experts included, which have zeros; the contract has layers with experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core import CapabilityError, RolloutError
from rlhf_core.contracts import EngineSpec, GenerationRequest

if TYPE_CHECKING:
    from vllm import CompletionOutput

    from .weights.workers import Workers

ARGUMENT = "enable_return_routed_experts"
OTHERWISE = "Choose --engine embedded, or leave algo.correction.replay_routes out"
SMALL = 128
"""Experts up to which an id fits into int8, -1 among them."""


def arguments(known: set[str], *, on_cpu: bool, prefix_caching: bool) -> dict[str, Any]:
    """Return the arguments with which vLLM tells routes.

    Args:
        known: names of vLLM's arguments.

    Raises:
        CapabilityError: this vLLM cannot tell them.
    """
    problem = ""
    if ARGUMENT not in known:
        problem = f"this vLLM has no argument {ARGUMENT}"
    elif on_cpu:
        problem = "vLLM tells routes by its second model runner, which needs Triton, and so a GPU"
    elif not prefix_caching:
        problem = "vLLM keeps routes by the blocks of its prefix cache, and engine.vllm.prefix_caching is off"
    if problem:
        raise CapabilityError(
            f"algo.correction.replay_routes: {problem}. {OTHERWISE}.", code="vllm/no-routes"
        )
    return {ARGUMENT: True}


class ToldRoutes:
    """Routes of the answers of one engine."""

    def __init__(self, workers: Workers, spec: EngineSpec) -> None:
        self._workers, self._wanted = workers, spec.returns_routes
        self._layers: list[int] = []
        self._dtype: type[np.signedinteger] = np.int16

    async def start(self) -> None:
        """Ask the workers for the layers with experts, if routes are wanted."""
        if self._wanted:
            (layers, *_) = await self._workers.ask("rlhf_expert_layers")
            self._layers = list(layers["layers"])
            self._dtype = np.int8 if layers["experts"] <= SMALL else np.int16

    def of(
        self, request: GenerationRequest, output: CompletionOutput
    ) -> NDArray[np.signedinteger] | None:
        """Return the routes (P + A - 1, L, k) of an answer; None: they are not wanted.

        Raises:
            RolloutError: vLLM told none, or not those of these tokens.
        """
        if not self._wanted:
            return None
        routes = output.routed_experts
        tokens = len(request.prompt_ids) + len(output.token_ids) - 1
        if (
            routes is None
            or routes.ndim != 3
            or len(routes) != tokens
            or routes.shape[1] <= max(self._layers)
        ):
            found = None if routes is None else routes.shape
            raise RolloutError(
                f"request {request.uid}: vLLM returned routes of shape {found}; expected ({tokens}, layers, experts of "
                f"a token), with more than {max(self._layers)} layers. {OTHERWISE}",
                code="rollout/shape-of-routes",
            )
        return routes[:, self._layers].astype(self._dtype)
