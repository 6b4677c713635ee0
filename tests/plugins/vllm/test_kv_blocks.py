"""A scheduler that asks for blocks only where they can change schedules and caches what vLLM's own does."""

from __future__ import annotations

import pytest
from benchmarks.lone_scheduler import BLOCK

from .driven_scheduler import ROOM, TOO_FEW, add_requests, computed, kinds, real_scheduler

pytest.importorskip("vllm")

pytestmark = pytest.mark.scale

LENGTHS = [5 + 11 * number for number in range(10)]
RESET_AT = 60


def state_of(scheduler):
    """Blocks that are free, blocks that are found again by their tokens, and how far each request has come."""
    manager = scheduler.kv_cache_manager
    requests = scheduler.requests.values()
    return (
        manager.block_pool.get_num_free_blocks(),
        len(manager.block_pool.cached_block_hash_to_block),
        [(one.request_id, one.status, one.num_tokens, one.num_computed_tokens) for one in requests],
        [manager.get_blocks(one.request_id).get_block_ids() for one in requests],
    )


def steps(scheduler, *, depth):
    """Yield what each step schedules and leaves behind, with ``depth`` steps under way."""
    under_way, token = [], 0
    for turn in range(2000):
        if turn == RESET_AT:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        if not scheduler.has_requests() and not under_way:
            return
        if scheduler.has_requests():
            token += 1
            scheduled = scheduler.schedule()
            new = {one.req_id: one.block_ids for one in scheduled.scheduled_new_reqs}
            running = scheduled.scheduled_cached_reqs
            blocks = dict(zip(running.req_ids, running.new_block_ids, strict=True))
            yield scheduled.num_scheduled_tokens, new, blocks, state_of(scheduler)
            under_way.append((scheduled, computed(scheduled, token)))
            if len(under_way) < depth and scheduler.has_requests():
                continue
        scheduler.update_from_output(*under_way.pop(0))
        yield state_of(scheduler)
    raise AssertionError("the scheduler never came to an end")


@pytest.mark.parametrize("prompt", [10, BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("num_blocks", [ROOM, TOO_FEW])
@pytest.mark.parametrize("in_advance", [False, True])
def test_every_step_is_that_of_vllms_own_scheduler(
    folder, monkeypatch, in_advance, num_blocks, prompt
):
    from rlhf_plugin_vllm.names import PORTION_VARIABLE

    monkeypatch.setenv(PORTION_VARIABLE, "1")
    runs = []
    for kind in kinds(in_advance):
        scheduler = real_scheduler(kind, folder, in_advance=in_advance, num_blocks=num_blocks)
        add_requests(scheduler, LENGTHS, prompt=range(3, 3 + prompt))
        runs.append(list(steps(scheduler, depth=2 if in_advance else 1)))
    theirs, ours = runs
    assert len(ours) == len(theirs) > max(LENGTHS)
    for number, pair in enumerate(zip(ours, theirs, strict=True)):
        assert pair[0] == pair[1], f"step {number}"


@pytest.mark.parametrize("in_advance", [False, True])
def test_the_cache_manager_is_asked_at_the_edges_of_blocks_only(folder, monkeypatch, in_advance):
    from rlhf_plugin_vllm.names import PORTION_VARIABLE

    monkeypatch.setenv(PORTION_VARIABLE, "1")
    asked = []
    for kind in kinds(in_advance):
        scheduler = real_scheduler(kind, folder, in_advance=in_advance)
        coordinator, calls = scheduler.kv_cache_manager.coordinator, []
        inner = coordinator.allocate_new_blocks
        monkeypatch.setattr(
            coordinator,
            "allocate_new_blocks",
            lambda *given, inner=inner, calls=calls: calls.append(1) or inner(*given),
        )
        add_requests(scheduler, [160])
        assert list(steps(scheduler, depth=1))
        asked.append(len(calls))
    assert asked[1] < asked[0] / 5
