"""An adapter beside the base's weights behind vLLM, against the model into which it is merged."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from tests.deadlines import HANG_S

pytest.importorskip("vllm")

from rlhf_core import RolloutError
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_plugin_vllm.weights import adapter_versions
from rlhf_testing.errors import has_code
from rlhf_weights import weights_digest

from .adapter_material import (
    RANK,
    TOLERANCE,
    assert_written_by,
    expected_logprobs,
    factors_of,
    merged,
)

pytestmark = [pytest.mark.scale, pytest.mark.slow]

PROMPT = (5, 9, 12)
LONG_PROMPT = tuple(5 + index % 60 for index in range(200))
"""Of more than a block of the KV cache, so that its keys and values are in the prefix cache."""
SEEDS = tuple(range(11, 15))
DOWN = "model.layers.1.mlp.down_proj"
VALUE = "model.layers.0.self_attn.v_proj"


@pytest.fixture(scope="module")
def started(loop, spec, plain, source_of, shared_engine):
    """The shared engine starts first: one that starts under the variable below answers only while it is set."""
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1))
    with pytest.MonkeyPatch.context() as patch:
        # So that a test may have functions of its own called in the worker.
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
        source = source_of(factors_of(plain, 0))
        loop.run_until_complete(engine.start(replace(spec, adapter_rank=RANK), source))
        yield engine
        loop.run_until_complete(engine.close())


@pytest.fixture
def first(plain):
    """The factors that the engine serves when a test begins, as version 0."""
    return factors_of(plain, 0)


@pytest.fixture
def engine(started, run, first, source_of):
    run(started.update_weights(0, source_of(first)))
    return started


@pytest.fixture
def in_worker(engine, run):
    """Call a function of the test in vLLM's worker."""
    return lambda function, *arguments: run(engine._llm.collective_rpc(function, args=arguments))


def slot_of(worker, module):
    """Return the matrices A and B of the newest version in vLLM's layer, in the worker."""
    slots = worker._rlhf_slots
    room = slots._rooms[module]
    return room.a[slots._slot, 0], room.b[slots._slot, 0]


async def until_running(engine, number):
    """Wait until vLLM has written a token for as many requests."""
    from rlhf_plugin_vllm import compat

    async with asyncio.timeout(HANG_S):
        while sum(count > 0 for count in compat.tokens_so_far(engine._llm).values()) < number:
            await asyncio.sleep(0.02)


def test_log_probs_and_digest_are_those_of_each_version(
    engine, run, make_request, plain, first, source_of
):
    second = factors_of(plain, 1)
    for version, factors in ((0, first), (7, second)):
        run(engine.update_weights(version, source_of(factors)))
        rows = run(engine.generate(make_request(PROMPT, seeds=SEEDS)))

        assert run(engine.checksum()) == weights_digest(factors.items())
        assert {v for row in rows for v in row.weight_version.tolist()} == {version}
        assert_written_by(plain, factors, PROMPT, rows)
        other = second if factors is first else first
        with pytest.raises(AssertionError, match="not close"):
            assert_written_by(plain, other, PROMPT, rows)


def test_requests_in_flight_go_on_with_their_version_beside_requests_of_the_next(
    engine, run, make_request, plain, first, source_of
):
    second = factors_of(plain, 1)

    async def work():
        running = asyncio.ensure_future(
            engine.generate(make_request(PROMPT, seeds=SEEDS, max_new_tokens=300))
        )
        await until_running(engine, len(SEEDS))
        await engine.update_weights(1, source_of(second))
        assert not running.done()
        new = await engine.generate(make_request(PROMPT, seeds=SEEDS))
        return await running, new, await engine.checksum()

    old, new, digest = run(work())

    assert {v for row in old for v in row.weight_version.tolist()} == {0}
    assert {v for row in new for v in row.weight_version.tolist()} == {1}
    assert_written_by(plain, first, PROMPT, old)
    assert_written_by(plain, second, PROMPT, new)
    assert digest == weights_digest(second.items())


def test_paused_requests_keep_their_version_over_an_update(
    engine, run, make_request, plain, first, source_of
):
    second = factors_of(plain, 1)

    async def work():
        running = asyncio.ensure_future(
            engine.generate(make_request(PROMPT, seeds=SEEDS, max_new_tokens=300))
        )
        await until_running(engine, 1)
        await engine.pause()
        await engine.update_weights(1, source_of(second))
        waiting = asyncio.ensure_future(engine.generate(make_request(PROMPT, seeds=SEEDS)))
        digest = await engine.checksum()
        await engine.resume()
        return await running, await waiting, digest

    old, new, digest = run(work())

    assert digest == weights_digest(second.items())
    assert_written_by(plain, first, PROMPT, old)
    assert_written_by(plain, second, PROMPT, new)
    assert {v for row in old for v in row.weight_version.tolist()} == {0}


def test_more_versions_in_flight_than_vllm_computes_with_at_once(
    engine, run, make_request, plain, source_of
):
    versions = {version: factors_of(plain, version) for version in range(6)}

    async def work():
        running = {}
        for version, factors in versions.items():
            await engine.update_weights(version, source_of(factors))
            request = make_request(PROMPT, seeds=SEEDS[:1], max_new_tokens=300, number=version)
            running[version] = asyncio.ensure_future(engine.generate(request))
            await asyncio.sleep(0)
        digest = await engine.checksum()
        return {version: await rows for version, rows in running.items()}, digest

    answers, digest = run(work())

    assert digest == weights_digest(versions[5].items())
    for version, rows in answers.items():
        assert {v for row in rows for v in row.weight_version.tolist()} == {version}
        assert_written_by(plain, versions[version], PROMPT, rows)


def test_versions_without_requests_are_dropped(engine, run, make_request, first, source_of):
    async def work():
        cancelled = asyncio.ensure_future(
            engine.generate(make_request(PROMPT, seeds=SEEDS, max_new_tokens=900))
        )
        await until_running(engine, 1)
        await engine.update_weights(1, source_of(first))
        # The client ends an answer at a stop string before vLLM's core knows of it.
        await engine.generate(make_request(PROMPT, seeds=SEEDS, stop=("a", "7", "e")))
        await engine.update_weights(2, source_of(first))
        held = [len(await engine._llm.list_loras())]
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        for version in range(3, 6):
            await engine.update_weights(version, source_of(first))
            held.append(len(await engine._llm.list_loras()))
        return held, await engine.generate(make_request(PROMPT))

    held, rows = run(work())

    # The one in use, the one before, and the newest; then the last two.
    assert held == [3, 2, 2, 2]
    assert set(rows[0].weight_version.tolist()) == {5}


def check_prefixes(run, engine, make_request, plain, source_of):
    """Serve a prompt under one version, then under the next, and compare with the next alone."""
    second = factors_of(plain, 1)
    run(engine.generate(make_request(LONG_PROMPT, seeds=SEEDS)))
    run(engine.update_weights(1, source_of(second)))
    rows = run(engine.generate(make_request(LONG_PROMPT, seeds=SEEDS)))
    run(engine._llm.reset_prefix_cache())
    fresh = run(engine.generate(make_request(LONG_PROMPT, seeds=SEEDS)))

    for row, other in zip(rows, fresh, strict=True):
        assert row.token_ids.tolist() == other.token_ids.tolist()
    assert_written_by(plain, second, LONG_PROMPT, rows)


def test_keys_and_values_of_an_older_version_are_never_used(
    engine, run, make_request, plain, source_of
):
    check_prefixes(run, engine, make_request, plain, source_of)


def test_one_name_for_two_versions_would_be_noticed(
    engine, run, make_request, plain, source_of, monkeypatch
):
    make = adapter_versions.lora_request

    def same_name(number):
        return type(make(number))(lora_name="same", lora_int_id=number, lora_path="/same")

    monkeypatch.setattr(adapter_versions, "lora_request", same_name)
    with pytest.raises(AssertionError):
        check_prefixes(run, engine, make_request, plain, source_of)
    run(engine._llm.reset_prefix_cache())


def test_factors_may_have_less_than_the_engines_rank(engine, run, make_request, plain, source_of):
    small = factors_of(plain, 3, rank=1)
    run(engine.update_weights(1, source_of(small)))

    assert run(engine.checksum()) == weights_digest(small.items())
    assert_written_by(plain, small, PROMPT, run(engine.generate(make_request(PROMPT))))


@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens", "model.layers.0.mlp.experts"])
def test_a_module_that_vllm_does_not_serve_is_named(engine, run, first, source_of, module):
    factors = {**first, f"{module}.lora_A": torch.ones(RANK, 32)}
    factors[f"{module}.lora_B"] = torch.ones(99, RANK)

    with pytest.raises(
        RolloutError,
        match=rf"an adapter of {module}: .*merged into the weights",
        check=has_code("vllm/worker-failed"),
    ):
        run(engine.update_weights(1, source_of(factors)))


def without(*names):
    return lambda factors: {name: one for name, one in factors.items() if name not in names}


def replacing(name, change):
    return lambda factors: {**factors, name: change(factors[name])}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda factors: {}, "sent no factors of its adapter"),
        (without(f"{DOWN}.lora_B"), rf"sent {DOWN}\.lora_A without {DOWN}\.lora_B"),
        (
            without(f"{DOWN}.lora_A", f"{DOWN}.lora_B"),
            rf"sent nothing for {DOWN}\.lora_A \(2 factors",
        ),
        (lambda factors: {**factors, "a.weight": torch.ones(1)}, r"a\.weight is no factor"),
        (replacing(f"{VALUE}.lora_B", lambda b: b[:-1]), rf"factors of {VALUE} have shapes"),
        (replacing(f"{DOWN}.lora_A", lambda a: a[:, :-1]), rf"factors of {DOWN} have shapes"),
        (replacing(f"{DOWN}.lora_A", lambda a: a[:-1]), rf"factors of {DOWN} have shapes"),
        (replacing(f"{DOWN}.lora_A", torch.Tensor.bfloat16), "not serve the trainer's bits"),
    ],
    ids=["nothing", "half", "module", "weight", "outputs", "inputs", "rank", "dtype"],
)
def test_factors_that_do_not_fit_are_refused_until_a_whole_set_comes(
    engine, run, make_request, first, source_of, spoil, message
):
    with pytest.raises(
        RolloutError, match=f"update_weights: .*{message}", check=has_code("vllm/worker-failed")
    ):
        run(engine.update_weights(1, source_of(spoil(first))))
    with pytest.raises(
        RolloutError, match="without a whole set of weights", check=has_code("engine/wrong-state")
    ):
        run(engine.generate(make_request(PROMPT)))

    run(engine.update_weights(2, source_of(first)))
    (row,) = run(engine.generate(make_request(PROMPT)))
    assert set(row.weight_version.tolist()) == {2}


def test_a_rank_beyond_the_engines_is_refused(engine, run, plain, source_of):
    with pytest.raises(RolloutError, match="room for rank 8", check=has_code("vllm/worker-failed")):
        run(engine.update_weights(1, source_of(factors_of(plain, 1, rank=9))))


@pytest.mark.parametrize("which", [0, 1], ids=["A", "B"])
def test_one_number_that_was_changed_in_the_slot_changes_the_digest(
    engine, run, in_worker, first, which
):
    def spoil(worker, module, which):
        slot_of(worker, module)[which][0, 0] += 0.001

    in_worker(spoil, VALUE, which)

    assert run(engine.checksum()) != weights_digest(first.items())


def test_a_number_beside_the_factors_is_noticed(engine, run, in_worker):
    def spoil(worker, module):
        slot_of(worker, module)[0][-1, 0] = 1e-6

    in_worker(spoil, VALUE)

    with pytest.raises(
        RolloutError,
        match=r"1 numbers beside .* model\.layers\.0\.self_attn\.qkv",
        check=has_code("vllm/worker-failed"),
    ):
        run(engine.checksum())


def test_a_module_that_vllm_left_out_is_named(engine, run, in_worker, first, source_of):
    def leave_out(worker, left_out):
        manager = worker._rlhf_slots._manager
        layer = manager.modules[left_out]
        layer.set_lora = lambda index, *factors: layer.reset_lora(index)
        worker._rlhf_slots._layout = None  # as before the first version

    def put_back(worker, left_out):
        del worker._rlhf_slots._manager.modules[left_out].set_lora

    in_worker(leave_out, DOWN)
    try:
        with pytest.raises(
            RolloutError,
            match=rf"left out the factor {DOWN}\.lora_A",
            check=has_code("vllm/worker-failed"),
        ):
            run(engine.update_weights(1, source_of(first)))
    finally:
        in_worker(put_back, DOWN)


def test_an_older_version_in_the_place_of_the_newest_has_another_digest(
    engine, run, in_worker, plain, first, source_of
):
    """The worker ignores what comes, and serves what it has."""

    def go_deaf(worker):
        slots = worker._rlhf_slots
        before = slots._buckets
        slots.take = lambda *_: setattr(slots, "_buckets", before)

    def hear_again(worker):
        del worker._rlhf_slots.take

    second = factors_of(plain, 1)
    in_worker(go_deaf)
    try:
        run(engine.update_weights(1, source_of(second)))
        assert run(engine.checksum()) == weights_digest(first.items())
    finally:
        in_worker(hear_again)

    run(engine.update_weights(2, source_of(second)))
    assert run(engine.checksum()) == weights_digest(second.items())


def test_a_version_that_is_gone_has_no_digest(engine, run, in_worker):
    in_worker(lambda worker: worker.model_runner.lora_manager.remove_all_adapters())

    with pytest.raises(
        RolloutError, match="does not hold version", check=has_code("vllm/worker-failed")
    ):
        run(engine.checksum())


@pytest.mark.parametrize("path", ["memory", "collective"])
def test_factors_come_by_a_link(
    engine, run, make_request, plain, first, source_of, link_to, sync, path
):
    sender = link_to(engine, first, path, 1 << 12)  # several buckets
    for version in (3, 4):
        factors = factors_of(plain, version)
        run(sync(sender, engine, factors, version))

        assert run(engine.checksum()) == weights_digest(factors.items())
        rows = run(engine.generate(make_request(PROMPT, seeds=SEEDS)))
        assert {v for row in rows for v in row.weight_version.tolist()} == {version}
        assert_written_by(plain, factors, PROMPT, rows)


def test_what_it_writes_is_what_the_merged_model_writes_behind_vllm(
    engine, run, make_request, plain, first, shared_engine, source_of
):
    """The same model by the way of whole weights."""
    with merged(plain, first):
        state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    request = make_request(LONG_PROMPT, seeds=SEEDS)
    run(shared_engine.update_weights(0, source_of(state)))
    try:
        ours, theirs = run(engine.generate(request)), run(shared_engine.generate(request))
    finally:
        run(shared_engine.update_weights(0, source_of(dict(plain.state_dict()))))

    for row, other in zip(ours, theirs, strict=True):
        assert row.token_ids.tolist() == other.token_ids.tolist()
        actual = torch.from_numpy(row.logprobs)
        expected = torch.from_numpy(other.logprobs)
        torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)
    stale = expected_logprobs(plain, LONG_PROMPT, ours[0])
    assert float((torch.from_numpy(ours[0].logprobs) - stale).abs().max()) > 100 * TOLERANCE
