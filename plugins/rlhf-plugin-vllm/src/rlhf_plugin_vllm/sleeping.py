"""Sleep of vLLM: which memory is away, and in which order it comes back."""

from __future__ import annotations

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import EngineSpec

from .config import VllmEngineConfig
from .weights.workers import Workers

WEIGHTS, CACHE = "weights", "kv_cache"
"""vLLM's names of the memory that comes back apart from the rest."""


class VllmSleep:
    """The memory of vLLM's workers while the engine sleeps.

    A worker on a CPU keeps its memory, which vLLM gives back on GPUs only; everything else is the same there.

    Args:
        level: vLLM's level of sleep; None: the run did not ask for it, and memory stays.
    """

    def __init__(self, workers: Workers, level: int | None) -> None:
        self._workers = workers
        self._level = level
        self._away: frozenset[str] = frozenset()
        self._lost = False
        """Whether the weights were dropped, and no update has come since."""

    async def fall_asleep(self) -> None:
        """Give the memory back. Nothing is in flight."""
        llm, answer = self._workers.llm, self._workers.answer
        if self._level is None:
            await answer(llm.reset_prefix_cache())
            return
        await answer(llm.sleep(self._level))
        self._away, self._lost = frozenset({WEIGHTS, CACHE}), self._level == 2

    async def take_weights_back(self) -> None:
        """Have the memory of the weights, without the values at level 2; called before an update."""
        if WEIGHTS in self._away:
            await self._workers.answer(self._workers.llm.wake_up([WEIGHTS]))
            self._away -= {WEIGHTS}

    def was_updated(self) -> None:
        """Note that whole weights have come."""
        self._lost = False

    def require_weights(self, what: str) -> None:
        """Refuse a call that needs weights which sleep has dropped.

        Raises:
            RolloutError: names the call that has to come first.
        """
        if self._lost:
            raise RolloutError(
                f"{what}: sleep at level 2 dropped the weights; expected update_weights before. Level 1 keeps them in "
                "host memory (engine.vllm.sleep_level)",
                code="vllm/weights-dropped",
            )

    async def wake(self) -> None:
        """Have all memory back.

        Raises:
            RolloutError: sleep dropped the weights, and no update has come.
        """
        self.require_weights("wake")
        await self.take_weights_back()
        if self._away:
            await self._workers.answer(self._workers.llm.wake_up(sorted(self._away)))
            self._away = frozenset()


def sleep_level(spec: EngineSpec, config: VllmEngineConfig) -> int | None:
    """Return vLLM's level of sleep in this run; None: the engine is not asked to sleep.

    Raises:
        ConfigError: updates do not bring all that level 2 drops.
    """
    if not spec.sleeps:
        return None
    if config.sleep_level == 2 and spec.adapter_rank is not None:
        raise ConfigError(
            "engine.vllm.sleep_level 2 drops the base's weights, and an update brings an adapter's factors alone. Set "
            "--engine.vllm.sleep_level 1, or have whole weights served: --actor.lora.serve merged",
            code="vllm/sleep-level",
        )
    if config.sleep_level is not None:
        return config.sleep_level
    # A base in 4 bits is unpacked as it is loaded, once.
    brings_all = spec.adapter_rank is None and spec.quantization is None
    return 2 if brings_all else 1
