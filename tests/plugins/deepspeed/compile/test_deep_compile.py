"""Two ranks whose layers are one graph with DeepSpeed's sums in it, against one rank of torch without a compiler."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("deepspeed")

from rlhf_core import ConfigError
from rlhf_core.contracts import ComponentRef, RoleSpec
from rlhf_plugin_deepspeed.compile import deep_compile
from rlhf_plugin_deepspeed.compile.deep_compile import refuse_deep_compile, sum_in_float32
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_testing.errors import has_code
from rlhf_torch.ranks.ranks import Ranks

pytestmark = [pytest.mark.scale, pytest.mark.slow]
ROUNDING = {"atol": 1e-5, "rtol": 1e-4}
SCENARIOS = ("longer", "few_rows", "untied", "critic", "same_prompts", "resting")
COMPARED = (
    "weights/",
    "token-mean/",
    "seq-",
    "logprobs",
    "scored",
    "values",
    "before",
    "statistics",
)


def assert_same(ranks, alone, **tolerance):
    for name, wanted in alone.tensors.items():
        if not name.startswith(COMPARED):
            continue
        actual = [rank.tensors[name] for rank in ranks]
        if "." in name:  # weights, of which every rank has all
            for tensor in actual:
                torch.testing.assert_close(tensor, wanted, **(tolerance or ROUNDING))
        else:
            torch.testing.assert_close(torch.cat(actual), wanted, **(tolerance or ROUNDING))


@pytest.mark.matrix
def test_one_graph_trains_alike(run_ranks, read_ranks, expected, assert_same_metrics, tmp_path):
    """Clipping, schedule, the moving average and a step with NaN among it."""
    folder = run_ranks("one graph", tmp_path)

    for stage in (2, 3):
        ranks = read_ranks(folder, stage, "training")
        assert_same(ranks, expected("training"))
        assert_same_metrics(ranks, expected("training"), more_passes=True)
        assert [rank.facts["unchanged"] for rank in ranks] == [True, True]


@pytest.mark.matrix
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_role_trains_alike(
    run_ranks, read_ranks, expected, assert_same_metrics, tmp_path, stage
):
    """Also one after the other in a process; tied and untied heads, critics, ranks without rows, shared prompts."""
    folder = run_ranks(f"graphs {stage}", tmp_path)

    for name in SCENARIOS:
        ranks = read_ranks(folder, stage, name)
        assert_same(ranks, expected(name))
        assert_same_metrics(ranks, expected(name), more_passes=True)
    if stage > 1:
        # Fused operations round elsewhere, so weights are compared between ranks, and metrics with those of one.
        ranks = read_ranks(folder, stage, "mixed")
        assert_same(ranks[1:], ranks[0], atol=0.0, rtol=0.0)
        assert_same_metrics(ranks, expected("mixed"), atol=5e-3, more_passes=True)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gpus_train_alike(run_ranks, read_ranks, expected, assert_same_metrics, tmp_path, stage):
    """With DeepSpeed's own operations, over NCCL."""
    folder = run_ranks(f"graphs {stage} on GPUs", tmp_path)

    for name in SCENARIOS:
        ranks = read_ranks(folder, stage, name)
        assert_same(ranks, expected(name))
        assert_same_metrics(ranks, expected(name), more_passes=True)


CPU = Ranks(0, 1, torch.device("cpu"))
SPEC = RoleSpec(role="policy", model_path="model")


@pytest.fixture
def supported(monkeypatch):
    from deepspeed.compile import util

    monkeypatch.setattr(util, "is_deepcompile_supported", lambda: True)


def test_a_machine_without_a_gpu_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"deep_compile with the policy on cpu: .* NVIDIA GPUs",
        check=has_code("deepspeed/deep-compile"),
    ):
        refuse_deep_compile(DeepSpeedConfig(deep_compile=True), SPEC, CPU)


def test_a_second_role_of_a_process_is_refused(supported, monkeypatch):
    monkeypatch.setattr(deep_compile, "_compiled", [object()])

    with pytest.raises(
        ConfigError, match="once per process", check=has_code("deepspeed/deep-compile")
    ):
        refuse_deep_compile(DeepSpeedConfig(deep_compile=True), SPEC, CPU)


@pytest.mark.parametrize(
    ("stage", "spec", "reason"),
    [
        (2, {"adapter": ComponentRef(kind="rlhf_model_adapters", name="x:y")}, "with an adapter"),
        (1, {"dtype": "bfloat16"}, "zero_stage 1 with bfloat16 parameters"),
    ],
)
def test_a_role_that_it_has_no_way_for_is_refused(supported, stage, spec, reason):
    config = DeepSpeedConfig(deep_compile=True, zero_stage=stage)

    with pytest.raises(ConfigError, match=reason, check=has_code("deepspeed/deep-compile")):
        refuse_deep_compile(config, replace(SPEC, **spec), CPU)
    refuse_deep_compile(config, SPEC, CPU)


def test_layers_that_cannot_be_one_graph_end_the_run_with_the_reason():
    from torch._dynamo.exc import Unsupported

    with (
        pytest.raises(
            ConfigError,
            match="layers of the policy cannot be compiled as one graph: a loop somewhere\\. ",
            check=has_code("deepspeed/deep-compile"),
        ),
        deep_compile._compiling("policy"),
    ):
        raise Unsupported("a loop\nsomewhere\n\nand more")


def test_gradients_leave_the_graph_in_float32():
    graph = torch.fx.Graph()
    half, full = (graph.placeholder(name) for name in ("half", "full"))
    half.meta["val"] = torch.empty(2, dtype=torch.bfloat16)
    full.meta["val"] = torch.empty(2)
    graph.output((half, full, half, None))
    gm = torch.fx.GraphModule({}, graph)
    gradients = {"a": half, "b": full, "c": half, "frozen": None}
    manager = {7: SimpleNamespace(get_bwd_mapping=lambda graph: (None, gradients))}

    sum_in_float32(gm, 7, None, None, None, 0.0, manager, bwd=True).recompile()

    found = gm(torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor([3.0, 4.0]))
    assert [part if part is None else part.dtype for part in found] == [torch.float32] * 3 + [None]
    assert found[0].tolist() == [1.0, 2.0]
