"""One process, at every stage: the contract, and state that two ranks have written."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, OPTConfig

from rlhf_core import CheckpointError, ConfigError, PluginError
from rlhf_core.contracts import Trajectory, TrajectoryColumns, Uid
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.conformance import applying, subject
from rlhf_testing.errors import has_code

pytestmark = [pytest.mark.scale]
pytest.importorskip("deepspeed")
stages = pytest.mark.parametrize("stage", [0, 1, 2, 3])
# Stage 1 takes the lines of stage 2 but for sums of gradients, which one rank does not have.
kinds_of_stages = pytest.mark.parametrize(
    "stage", [0, pytest.param(1, marks=pytest.mark.matrix), 2, 3]
)
# Each stage once as the one that wrote and as the one that goes on, and never the same one.
JOURNEYS = [
    pytest.param(written, stage, marks=[] if stage == written % 3 + 1 else pytest.mark.matrix)
    for written in (1, 2, 3)
    for stage in (1, 2, 3)
]
CHECKS = applying("rlhf_train_backends", subject(lambda: None))


@pytest.fixture
def make():
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    return lambda **options: DeepSpeedBackend(
        DeepSpeedConfig(device="cpu", reduce_bucket_size=100_000, **options)
    )


@pytest.fixture
def place(make, models, scenarios, tmp_path):
    return scenarios.Place(make, models, tmp_path)


@kinds_of_stages
@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_the_contract_is_kept(make, stage, check):
    check(subject(lambda: make(zero_stage=stage), label=f"stage {stage}"))


@stages
def test_the_live_module_is_shared_where_it_is_whole(place, stage):
    backend = place.start(options={"zero_stage": stage})

    assert (backend.module() is None) == (stage == 3)
    backend.close()


@pytest.mark.slow
@pytest.mark.parametrize(("written", "stage"), JOURNEYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_goes_on_where_two_of_another_stage_stopped(
    place, two_ranks, found, scenarios, stage, written, dtype
):
    spec = {**scenarios.TRAINING, "dtype": dtype, "options": {"zero_stage": stage}}
    backend = place.start(**spec)

    backend.load(two_ranks(written, "resuming") / f"saved_{dtype}")

    restored = scenarios.Found()
    restored.keep_weights(backend, f"saved_{dtype}")
    saved = found(written, "resuming")[0].tensors
    for name, tensor in restored.tensors.items():
        torch.testing.assert_close(tensor, saved[name], atol=0, rtol=0)
    straight = place.start(**spec)
    scenarios.steps(place, straight, (0, 1, 2))
    for one in (backend, straight):
        scenarios.steps(place, one, (3, 4))
    ends = []
    for one in (backend, straight):
        end = scenarios.Found()
        end.keep_weights(one)
        ends.append(end.tensors)
        one.close()
    # Without the optimizer's state the first step after loading would be of another size.
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    torch.testing.assert_close(ends[0], ends[1], atol=tolerance, rtol=0)


def test_state_is_safetensors_and_json(place, scenarios, tmp_path):
    backend = place.start(**scenarios.TRAINING)
    scenarios.steps(place, backend, (0,))

    backend.save(tmp_path / "saved")

    names = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert names == ["part-00000-of-00001.safetensors", "state.json"]
    state = json.loads((tmp_path / "saved" / "state.json").read_text())
    assert (state["parts"], state["updates"], state["ema"]) == (1, 1, True)
    backend.close()


def test_a_checkpoint_that_does_not_fit_is_refused(place, scenarios, tmp_path):
    backend = place.start(**scenarios.TRAINING)
    backend.save(tmp_path / "saved")
    other = place.start("qwen3_moe", **scenarios.TRAINING)
    whole = place.start(**scenarios.TRAINING, options={"zero_stage": 0})
    whole.save(tmp_path / "whole")

    with pytest.raises(
        CheckpointError, match="of another model", check=has_code("checkpoint/other-run")
    ):
        other.load(tmp_path / "saved")
    with pytest.raises(
        CheckpointError,
        match="not written by ranks that share the state",
        check=has_code("checkpoint/other-run"),
    ):
        backend.load(tmp_path / "whole")
    with pytest.raises(
        CheckpointError, match="cannot be read", check=has_code("checkpoint/unreadable")
    ):
        backend.load(tmp_path / "absent")
    (tmp_path / "saved" / "part-00000-of-00001.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match="part-00000-of-00001", check=has_code("checkpoint/unreadable")
    ):
        backend.load(tmp_path / "saved")
    for one in (backend, other, whole):
        one.close()


def test_an_average_that_is_not_kept_cannot_be_exported(place, tmp_path):
    backend = place.start()

    with pytest.raises(
        ConfigError, match="keeps no moving average", check=has_code("training/no-moving-average")
    ):
        backend.export(tmp_path, ema=True)
    backend.close()


def test_an_environment_with_a_part_of_the_ranks_is_refused(monkeypatch):
    from rlhf_torch.ranks import ranks

    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: False)
    for name in ranks.NEEDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "1")

    with pytest.raises(
        ConfigError,
        match="lacks WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT",
        check=has_code("ranks/incomplete-environment"),
    ):
        ranks.join(torch.device("cpu"))


@stages
def test_rows_without_actions_change_nothing(place, material, scenarios, stage):
    """One fills a micro-batch alone, which then has nothing to go through the head with."""
    batch = material.make_batch()
    silent = Trajectory(
        uid=Uid(0, 99),
        token_ids=np.full(scenarios.SMALL_MICRO_BATCH, 7, dtype=np.int32),
        action_mask=np.zeros(scenarios.SMALL_MICRO_BATCH, dtype=bool),
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        weight_version=np.zeros(0, dtype=np.int32),
        turns=(),
    )
    more = TrajectoryColumns.concatenate(
        [batch.trajectories, TrajectoryColumns.from_trajectories([silent])]
    )
    plan, found = material.make_plan(batch, return_logprobs=True), []
    for rows in (batch.trajectories, more):
        backend = place.start("untied", options={"zero_stage": stage})
        outcome = backend.train_step(replace(batch, trajectories=rows), plan)
        found.append((outcome.logprobs, backend.logprobs(rows), scenarios.Found()))
        found[-1][-1].keep_weights(backend)
        backend.close()

    for one, other in zip(found[0][:2], found[1][:2], strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
    torch.testing.assert_close(found[1][2].tensors, found[0][2].tensors, atol=1e-6, rtol=0)


def test_an_update_of_stage_3_starts_no_process(place, material, monkeypatch):
    """DeepSpeed would ask numactl for the number of devices at every bucket of gradients."""
    backend, batch = place.start(options={"zero_stage": 3}), material.make_batch()
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: started.append(words))

    backend.train_step(batch, material.make_plan(batch))

    assert started == []
    backend.close()


def test_a_process_that_a_single_rank_started_is_a_single_rank_too(monkeypatch):
    """DeepSpeed wants LOCAL_RANK to be set, and children inherit it."""
    from rlhf_torch.ranks import ranks

    joined = []
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(ranks.dist, "init_process_group", lambda *_, **how: joined.append(how))
    monkeypatch.setattr(ranks.atexit, "register", lambda function: None)
    monkeypatch.setattr(ranks.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda: 1)
    for name in ranks.NEEDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")

    found = ranks.join(torch.device("cpu"))

    assert (found.rank, found.world_size) == (0, 1)
    assert [how["world_size"] for how in joined] == [1]


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [
        *((0, "float32"), (0, "bfloat16"), (1, "float32"), (1, "bfloat16"), (2, "bfloat16")),
        *((3, "float32"), (3, "bfloat16")),
    ],
)
def test_a_role_goes_on_after_it_was_moved_to_the_host_and_back(place, scenarios, stage, dtype):
    """Whatever DeepSpeed keeps at a stage loses its memory meanwhile: weights, their parts, copies, moments."""
    spec = {**scenarios.TRAINING, "dtype": dtype, "options": {"zero_stage": stage}}
    straight, moved = place.start(**spec), place.start(**spec)
    for backend in (straight, moved):
        scenarios.steps(place, backend, (0, 1))
    moved.offload()
    with pytest.raises(
        PluginError, match="in host memory since offload", check=has_code("training/offloaded")
    ):
        scenarios.steps(place, moved, (2,))
    assert _moments_are_out(moved)
    assert stage == 0 or not _bytes_of_the_model(moved)  # a mapped file of weights stays

    moved.reload()

    assert moved.checksum() == straight.checksum()
    for backend in (straight, moved):
        scenarios.steps(place, backend, (2, 3))
    assert moved.checksum() == straight.checksum()
    moved.offload()  # a run that fails while the engine generates closes what is out
    for backend in (straight, moved):
        backend.close()


def _bytes_of_the_model(backend):
    """Bytes of parameters and of what DeepSpeed keeps beside them, gradients included."""
    zero = getattr(backend._training, "zero", None)
    tensors = list(backend._open.model.parameters())
    tensors += [p.ds_tensor for p in tensors if hasattr(p, "ds_tensor")]
    if zero is not None:
        tensors += backend._training.masters
        tensors += getattr(zero, "fp32_groups_gradients_flat", [])
        buffer = getattr(zero, "grad_partitions_flat_buffer", None)
        tensors += [] if buffer is None else [buffer]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_state_that_is_on_its_way_back_is_waited_for_by_who_reads_it(place, scenarios, tmp_path):
    spec = {**scenarios.TRAINING, "options": {"zero_stage": 2}}
    straight, moved = place.start(**spec), place.start(**spec)
    for backend in (straight, moved):
        scenarios.steps(place, backend, (0, 1))
    moved.offload()
    moved.reload()
    moved.save(tmp_path / "moved")
    straight.save(tmp_path / "straight")

    for file in sorted((tmp_path / "straight").glob("*.safetensors")):
        assert (tmp_path / "moved" / file.name).read_bytes() == file.read_bytes()
    moved.offload(weights=False, state=False)
    assert moved.checksum() == straight.checksum()
    for backend in (straight, moved):
        backend.close()


def _moments_are_out(backend):
    training = backend._training
    optimizer = training.updater.optimizer if training.stage == 0 else training.optimizer
    moments = [one["exp_avg"] for one in optimizer.state.values()]
    return moments and not any(moment.untyped_storage().nbytes() for moment in moments)


@pytest.fixture(scope="module")
def dropping(tmp_path_factory):
    """A model whose layers drop by a function that reads their own flag."""
    folder = tmp_path_factory.mktemp("dropping")
    config = OPTConfig(
        vocab_size=100,
        hidden_size=32,
        ffn_dim=64,
        word_embed_proj_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        dropout=0.3,
        attention_dropout=0.3,
        init_std=0.2,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


@stages
def test_recomputing_switches_no_dropout_on(place, material, dropping, stage):
    batch = material.make_batch()
    options = {"zero_stage": stage, "gradient_checkpointing": True}
    backend = place.start(options=options, model_path=str(dropping))
    scored = backend.logprobs(batch.trajectories)

    outcome = backend.train_step(batch, material.make_plan(batch, return_logprobs=True))

    np.testing.assert_allclose(outcome.logprobs, scored, atol=1e-5)
    backend.close()


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_gains_of_two_axes_are_left_to_adamw(
    place, material, scenarios, tmp_path_factory, caplog, stage
):
    """Cohere's norms of queries and keys have a gain for each head; Muon would orthogonalize it."""
    folder = tmp_path_factory.mktemp("cohere")
    config = CohereConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        use_qk_norm=True,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    caplog.set_level("INFO", logger="rlhf_torch")
    batch, found = material.make_batch(), []
    for make in (place.make, lambda **_: TorchBackend(TorchBackendConfig(device="cpu"))):
        own = scenarios.Place(make, place.models, place.folder)
        spec = {"optimizer": material.MUON, "model_path": str(folder)}
        backend = own.start(options={"zero_stage": stage}, **spec)
        backend.train_step(batch, material.make_plan(batch))
        found.append(scenarios.Found())
        found[-1].keep_weights(backend)
        backend.close()

    listed = [record.getMessage() for record in caplog.records if ", group " in record.getMessage()]
    assert [("q_norm" in line, "k_norm" in line) for line in listed if "group muon" in line] == [
        (False, False)
    ] * 2
    assert all("q_norm.weight (2)" in line for line in listed if "group adam_no_decay" in line)
    torch.testing.assert_close(found[0].tensors, found[1].tensors, atol=1e-3, rtol=0)


@stages
def test_deterministic_kernels_are_wanted_in_an_update_alone(place, material, stage):
    batch = material.make_batch()
    backend = place.start(options={"zero_stage": stage, "deterministic": True})
    head = backend._model.lm.model.get_input_embeddings()
    seen = []
    head.register_forward_hook(lambda *_: seen.append(torch.are_deterministic_algorithms_enabled()))
    backend.train_step(batch, material.make_plan(batch))
    updated = len(seen)

    backend.logprobs(batch.trajectories)

    assert updated
    assert all(seen[:updated])
    assert not any(seen[updated:])
    backend.close()
