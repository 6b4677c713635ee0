"""KV-cache blocks of vLLM's scheduler, looked up only where a request starts or ends one. vLLM's core imports this.

For each running request and step vLLM's scheduler asks its cache manager for a slot, and tells it how far the request
has come. With blocks of 16 tokens that changes nothing in 14 of 16 steps: the slot is in a block that the request has,
and no block becomes complete. These calls are half of the time of scheduling, and for models of up to some billion
parameters it is the scheduler's process that sets the pace of generation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request, RequestStatus


class BetweenBlocks:
    """Mixed into a scheduler of vLLM: it asks for blocks only where they can change.

    Only for models whose layers all attend to everything, without speculative tokens, and without a connector that
    brings blocks from elsewhere; the scheduler of others stays as it is. What is scheduled and which blocks are cached
    is the same in every step.
    """

    kv_cache_manager: KVCacheManager
    connector: Any
    num_spec_tokens: int
    num_lookahead_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        manager = self.kv_cache_manager
        kinds = manager.coordinator.single_type_managers
        is_plain = len(kinds) == 1 and type(kinds[0]) is FullAttentionManager
        if (
            is_plain
            and self.connector is None
            and not self.num_spec_tokens + self.num_lookahead_tokens
        ):
            size = kinds[0].block_size
            manager.allocate_slots = _slots_at_edges(manager, size)  # type: ignore[method-assign]
            manager.cache_blocks = _blocks_when_complete(manager, size)  # type: ignore[method-assign]


def _slots_at_edges(manager: KVCacheManager, size: int) -> Callable[..., KVCacheBlocks | None]:
    inner, nothing = manager.allocate_slots, manager.empty_kv_cache_blocks
    running = RequestStatus.RUNNING

    def allocate_slots(
        request: Request, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> KVCacheBlocks | None:
        # A running request has a block for its last computed token, with room for the next one unless it was full. The
        # last slot goes the long way too: with it the block may be complete, and is cached.
        if (
            num_new_tokens == 1
            and 0 < request.num_computed_tokens % size < size - 1
            and request.status is running
        ):
            return nothing
        return inner(request, num_new_tokens, *args, **kwargs)

    return allocate_slots


def _blocks_when_complete(manager: KVCacheManager, size: int) -> Callable[[Request, int], None]:
    inner = manager.cache_blocks

    def cache_blocks(request: Request, num_computed_tokens: int) -> None:
        # Called for every token of a running request, so that no multiple is passed over.
        if num_computed_tokens % size == 0:
            inner(request, num_computed_tokens)

    return cache_blocks
