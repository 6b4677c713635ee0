"""Roles and engines in processes of their own do what they do in one process."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rlhf_core import ConfigError, FingerprintMismatch, PluginError, RLHFError, RolloutError
from rlhf_core.code_reference import parse
from rlhf_core.contracts import (
    ComponentRef,
    GenerationRequest,
    Normalizers,
    PreferenceObjective,
    RoleSpec,
    SamplingParams,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_plugin_local.config import LocalRuntimeConfig
from rlhf_plugin_local.runtime import LocalRuntime
from rlhf_testing.errors import has_code

from .conftest import engine_pids, request, sample, update_of

pytestmark = [pytest.mark.scale, pytest.mark.slow]


def reference_of(model, head="lm"):
    return RoleSpec(role="reference", model_path=str(model), head=head)


async def on_one_process(spec, plugins, play):
    runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
    try:
        return await play(await runtime.start(spec, plugins))
    finally:
        await runtime.close()


async def two_updates(placement, batch=None):
    """Log-probs, metrics and digests of two updates; on the given trajectories, or on sampled ones."""
    policy, engine = placement.roles["policy"], placement.engine
    told = []
    for version in range(1, 3):
        rows = batch or await sample(engine)
        statistics = await policy.statistics(rows, ["entropy", "logprobs"])
        outcome = await policy.train_step(*update_of(rows))
        await engine.update_weights(version, policy.weights())
        told.append((rows, statistics, outcome, await policy.checksum(), await engine.checksum()))
    return told


def test_updates_are_those_of_one_process_to_the_bit(placed, spec, plugins):
    async def play():
        expected = await on_one_process(spec(), plugins, two_updates)
        async with placed(spec()) as run:
            return expected, await two_updates(run)

    for here, there in zip(*asyncio.run(play()), strict=True):
        np.testing.assert_array_equal(here[0].token_ids, there[0].token_ids)
        np.testing.assert_array_equal(here[0].weight_version, there[0].weight_version)
        np.testing.assert_array_equal(here[1]["entropy"], there[1]["entropy"])
        np.testing.assert_array_equal(here[2].logprobs, there[2].logprobs)
        np.testing.assert_array_equal(here[2].entropies, there[2].entropies)
        np.testing.assert_array_equal(here[2].losses, there[2].losses)
        np.testing.assert_array_equal(here[2].clipped, there[2].clipped)
        assert here[2].metrics == there[2].metrics
        assert here[3] == there[3]
        assert there[3] == there[4], "the engine serves what was trained"


def test_two_ranks_do_the_update_of_one(placed, spec, plugins):
    """The gradient is a sum over the step's actions, so how rows are dealt to ranks only changes rounding."""

    async def play():
        batch = await on_one_process(spec(), plugins, lambda placement: sample(placement.engine))
        expected = await on_one_process(spec(), plugins, lambda run: two_updates(run, batch))
        options = {"ranks": {"policy": 2}, "colocate": ("policy", "engine"), "cpus_per": HALF}
        async with placed(spec(backend="summing"), **options) as run:
            return expected, await two_updates(run, batch), run.roles["policy"]

    expected, actual, _ = asyncio.run(play())

    for here, there in zip(expected, actual, strict=True):
        np.testing.assert_allclose(here[1]["logprobs"], there[1]["logprobs"], atol=1e-5)
        np.testing.assert_allclose(here[2].logprobs, there[2].logprobs, atol=1e-5)
        np.testing.assert_allclose(here[2].entropies, there[2].entropies, atol=1e-5)
        np.testing.assert_allclose(here[2].losses, there[2].losses, atol=1e-5)
        for name in ("policy/grad_norm", "loss/policy", "train/tokens"):
            if name in here[2].metrics:
                expected_value = here[2].metrics[name].value()
                assert there[2].metrics[name].value() == pytest.approx(expected_value, abs=1e-5)
        assert there[3] == there[4]
    assert "policy/grad_norm" in actual[0][2].metrics


HALF = {"policy": 0.5, "engine": 0.5}


def answers(num_pairs=5):
    """Pairs of answers, the chosen one first; lengths grow, so that neighbors cost different amounts."""
    rows = []
    for index in range(2 * num_pairs):
        tokens = np.arange(5, 10 + index, dtype=np.int32)
        rows.append(
            Trajectory(
                uid=Uid(0, index // 2, index % 2),
                token_ids=tokens,
                action_mask=np.arange(len(tokens)) >= 2,
                rollout_logprobs=np.zeros(len(tokens) - 2, dtype=np.float32),
                weight_version=np.zeros(len(tokens) - 2, dtype=np.int32),
                turns=(Turn(start=2, end=len(tokens)),),
                reward=float(index % 2 == 0),
            )
        )
    return TrajectoryColumns.from_trajectories(rows)


def without_engine(spec):
    """The same roles; the policy learns from pairs."""
    loss = ComponentRef(kind="rlhf_preference_losses", name="dpo")
    policy = replace(spec.roles["policy"], objective=PreferenceObjective(loss=loss, nll_coef=0.1))
    return replace(spec, engine=None, engine_spec=None, roles={"policy": policy})


async def two_preference_updates(placement):
    policy, rows = placement.roles["policy"], answers()
    reference = await policy.logprobs(rows)
    totals = Normalizers(
        num_actions=len(reference), num_sequences=len(rows), max_actions=int(rows.num_actions.max())
    )
    batch = TrainBatch(trajectories=rows, columns={"ref_logprobs": reference})
    plan = StepPlan(normalizers=totals, return_logprobs=True)
    return [await policy.train_step(batch, plan) for _ in range(2)]


def test_without_an_engine_pairs_of_answers_stay_on_one_rank(placed, spec, plugins):
    """A preference loss looks at both answers of a pair."""

    async def play():
        expected = await on_one_process(without_engine(spec()), plugins, two_preference_updates)
        two = {"ranks": {"policy": 2}, "cpus_per": {"policy": 0.5}}
        async with placed(without_engine(spec(backend="summing")), **two) as run:
            assert (run.engine, run.groups) == (None, None)
            return expected, await two_preference_updates(run)

    for here, there in zip(*asyncio.run(play()), strict=True):
        np.testing.assert_allclose(there.logprobs, here.logprobs, atol=1e-5)
        for name in ("loss/preference", "preference/margin", "preference/accuracy"):
            expected = here.metrics[name].value()
            assert there.metrics[name].value() == pytest.approx(expected, abs=1e-5), name


def test_every_call_of_a_role_reaches_its_ranks(placed, spec, plugins, model, tmp_path):
    async def calls(placement):
        batch = await sample(placement.engine)
        policy, reference = placement.roles["policy"], placement.roles["reference"]
        critic = placement.roles["critic"]
        top = await reference.top_tokens(batch, 3)
        return {
            "logprobs": await reference.logprobs(batch),
            "values": await critic.values(batch),
            "top ids": top.token_ids,
            "top logprobs": top.logprobs,
            "entropy": (await policy.statistics(batch, ["entropy"]))["entropy"],
        }

    roles = {
        "reference": RoleSpec(role="reference", model_path=str(model)),
        "critic": RoleSpec(role="critic", model_path=str(model), head="value"),
    }

    async def play():
        expected = await on_one_process(spec(**roles), plugins, calls)
        options = {"ranks": {"reference": 2}, "colocate": ("policy+critic+engine",)}
        options["cpus_per"] = {"reference": 0.5}
        async with placed(spec(backend="summing", **roles), **options) as run:
            return expected, await calls(run)

    expected, actual = asyncio.run(play())

    for name, column in expected.items():
        np.testing.assert_allclose(actual[name], column, atol=1e-5, err_msg=name)
        assert actual[name].flags.writeable, name


def test_saved_state_is_loaded_to_the_bit_and_exported(placed, spec, tmp_path):
    async def play():
        async with placed(spec()) as run:
            policy, batch = run.roles["policy"], await sample(run.engine)
            await policy.train_step(*update_of(batch))
            await policy.save(tmp_path / "saved")
            at_save = await policy.checksum()
            await policy.train_step(*update_of(batch))
            after = await policy.checksum()
            await policy.load(tmp_path / "saved")
            assert await policy.checksum() == at_save != after
            await policy.train_step(*update_of(batch))
            assert await policy.checksum() == after
            await policy.export(tmp_path / "exported")

    asyncio.run(play())

    assert (tmp_path / "exported" / "config.json").exists()


def test_the_driver_can_read_the_weights_too(placed, spec):
    async def play():
        async with placed(spec()) as run:
            source = run.roles["policy"].weights()
            return source.module(), [name for bucket in source.buckets() for name in bucket]

    module, names = asyncio.run(play())

    assert module is None
    assert "model.embed_tokens.weight" in names


def test_requests_are_spread_over_engines_and_weights_reach_all(placed, spec, plugins):
    async def ask(placement):
        return await asyncio.gather(*(placement.engine.generate(request(n)) for n in range(12)))

    async def play():
        expected = await on_one_process(spec(), plugins, ask)
        async with placed(spec(), engines=2, colocate=("policy+engine",)) as run:
            assert len(set(engine_pids(run.engine))) == 2
            actual = await ask(run)
            await run.roles["policy"].train_step(*update_of(await sample(run.engine)))
            await run.engine.update_weights(1, run.roles["policy"].weights())
            # The router's digest raises if the engines' differ.
            assert await run.engine.checksum() == await run.roles["policy"].checksum()
            await run.engine.pause()
            await run.engine.resume()
            await run.engine.sleep()
            await run.engine.wake()
            (again,) = await run.engine.generate(request(seeds=(1,)))
            assert again.weight_version.tolist() == [1] * len(again.token_ids)
            return expected, actual

    for here, there in zip(*asyncio.run(play()), strict=True):
        for a, b in zip(here, there, strict=True):
            np.testing.assert_array_equal(a.token_ids, b.token_ids)


def test_weights_of_somewhere_else_are_refused(placed, spec):
    async def play():
        async with placed(spec()) as run:
            await run.engine.update_weights(1, object())

    with pytest.raises(
        PluginError,
        match="take weights from its roles, got object",
        check=has_code("engine/other-weights"),
    ):
        asyncio.run(play())


def test_a_backend_that_trains_alone_gets_one_rank(placed, spec):
    async def play():
        async with placed(spec(), ranks={"policy": 2}):
            pass

    with pytest.raises(
        ConfigError,
        match=r"ranks\.policy = 2: --backend torch trains in one",
        check=has_code("ranks/one-process"),
    ):
        asyncio.run(play())


def test_a_file_that_changed_since_the_start_is_refused(placed, spec, plugins, tmp_path):
    """The same error as when another machine has another file under this path."""
    path = tmp_path / "mine.py"
    path.write_text("class Loss:\n    pass\n")
    plugins.get("rlhf_policy_losses", f"{path}:Loss")
    assert plugins.loaded[str(path)] == parse(f"{path}:Loss").origin
    path.write_text("class Loss:\n    x = 1\n")

    async def play():
        async with placed(spec()):
            pass

    with pytest.raises(
        FingerprintMismatch, match=r"mine\.py is another file", check=has_code("ray/file-differs")
    ):
        asyncio.run(play())


def test_an_error_of_a_rank_arrives_with_its_class_and_the_ranks_name(placed, spec, model):
    roles = {"reference": reference_of(model)}

    async def play():
        async with placed(spec(backend="raising", **roles)) as run:
            batch = await sample(run.engine)
            with pytest.raises(
                RLHFError,
                match=r"reference rank 0 .*MemoryError: no room",
                check=has_code("ray/process-failed"),
            ) as told:
                await run.roles["reference"].logprobs(batch)
            assert "ranked_components.py" in "".join(told.value.__notes__)
            with pytest.raises(
                RLHFError, match=r"ZeroDivisionError: 9 rows", check=has_code("ray/process-failed")
            ):
                await run.roles["reference"].values(batch)

    asyncio.run(play())


def test_a_request_that_cannot_be_served_is_refused_by_name(placed, spec):
    empty = GenerationRequest(
        uid=Uid(3, 4), prompt_ids=(), seeds=(1,), sampling=SamplingParams(max_new_tokens=4)
    )

    async def play():
        async with placed(spec()) as run:
            with pytest.raises(
                RolloutError,
                match=r"engine 0 .*request 3\.4\.0\.0: the prompt",
                check=has_code("engine/refused-request"),
            ):
                await run.engine.generate(empty)
            assert len(await run.engine.generate(request())) == 3

    asyncio.run(play())


def test_what_cannot_be_placed_is_refused_at_once(placed, spec):
    async def play():
        async with placed(spec(), engines=3):
            pass

    with pytest.raises(
        ConfigError,
        match=r"needs 3 CPUs, the Ray cluster has 2",
        check=has_code("ray/too-few-resources"),
    ):
        asyncio.run(play())


def test_a_model_that_cannot_be_loaded_is_named(placed, spec, tmp_path):
    roles = {"reference": reference_of(tmp_path / "nothing")}

    async def play():
        async with placed(spec(**roles)):
            pass

    with pytest.raises(
        ConfigError, match=r"reference rank 0.*nothing", check=has_code("model/not-found")
    ):
        asyncio.run(play())
