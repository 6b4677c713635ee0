"""Options: what contradicts itself, and what becomes of the rest."""

import pytest
from pydantic import ValidationError

from rlhf_core.contracts import RoleSpec
from rlhf_plugin_deepspeed.config import OURS, DeepSpeedConfig
from rlhf_plugin_deepspeed.zero.engine_config import engine_config

SPEC = RoleSpec(role="policy", model_path="model", max_grad_norm=0.5)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"zero_stage": 4}, "less than or equal to 3"),
        ({"zero_stage": 0, "offload_optimizer": True}, "offload_optimizer true with zero_stage 0"),
        ({"zero_stage": 2, "offload_param": True}, "only stage 3 shares the weights"),
        ({"pin_memory": True}, "nothing is offloaded"),
        ({"zero_stage": 0, "args": {"wall_clock_breakdown": True}}, "nothing would read args"),
        ({"args": {"zero_optimization": 3}}, "expected a table"),
        ({"zero_stage": 3, "compile": True}, "compile true with zero_stage 3"),
        ({"zero_stage": 0, "overlap_comm": True}, "overlap_comm true with zero_stage 0"),
        ({"zero_stage": 0, "deep_compile": True}, "deep_compile true with zero_stage 0"),
        ({"deep_compile": True, "compile": True}, "deep_compile true with compile: "),
        (
            {"deep_compile": True, "tensor_parallel": 2, "offload_optimizer": True},
            "deep_compile true with tensor_parallel, offload_optimizer: ",
        ),
        ({"args": {"compile": {"double_buffer": False}}}, "args.compile without deep_compile"),
    ],
)
def test_a_contradiction_is_refused_with_the_reason(options, reason):
    with pytest.raises(ValidationError, match=reason):
        DeepSpeedConfig(**options)


@pytest.mark.parametrize("key", sorted(OURS))
def test_what_the_backend_sets_cannot_be_set_beside_it(key):
    outer, _, inner = key.partition(".")

    with pytest.raises(ValidationError, match="is set by the backend; use instead"):
        DeepSpeedConfig(args={outer: {inner: 1} if inner else 1})


def test_args_reach_deepspeed_beside_ours():
    config = DeepSpeedConfig(
        zero_stage=3,
        args={"zero_optimization": {"sub_group_size": 7}, "wall_clock_breakdown": True},
    )

    made = engine_config(config, SPEC, 4)

    assert made["wall_clock_breakdown"] is True
    assert made["zero_optimization"]["sub_group_size"] == 7
    assert made["zero_optimization"]["stage"] == 3
    assert config.args["zero_optimization"] == {"sub_group_size": 7}


def test_the_engine_is_told_the_clipping_and_the_type():
    plain = engine_config(DeepSpeedConfig(), SPEC, 2)
    half = engine_config(
        DeepSpeedConfig(),
        RoleSpec(role="policy", model_path="model", dtype="bfloat16", max_grad_norm=None),
        2,
    )

    assert (plain["gradient_clipping"], "bf16" in plain) == (0.5, False)
    assert half["gradient_clipping"] == 0.0
    assert half["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert half["data_types"] == {"grad_accum_dtype": "fp32"}


def test_deep_compile_reaches_deepspeed_for_a_trained_role():
    config = DeepSpeedConfig(deep_compile=True, args={"compile": {"double_buffer": False}})

    trained = engine_config(config, SPEC, 2, deep_compile=True)

    assert trained["compile"] == {"deepcompile": True, "double_buffer": False}


def test_offloading_reaches_deepspeed():
    config = DeepSpeedConfig(zero_stage=3, offload_optimizer=True, offload_param=True)

    zero = engine_config(config, SPEC, 2)["zero_optimization"]

    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": False}
    assert zero["offload_param"] == {"device": "cpu", "pin_memory": False}
