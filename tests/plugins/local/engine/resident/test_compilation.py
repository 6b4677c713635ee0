"""Kernels of decoding as a compiler for GPUs takes them. Needs Triton, and no GPU.

The interpreter of the other tests does not see types that change in a loop, say.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rlhf_plugin_local.engine.next_token.sampling import BLOCK
from rlhf_plugin_local.engine.resident import attention_kernel, draw_kernel

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)
HOPPER = GPUTarget("cuda", 90, 32)
STRIDES = ("table_stride", "query_row", "query_head", "key_row", "key_head", "value_row")
ATTENTION = {
    "table_ptr": "*i32",
    "positions_ptr": "*i64",
    "maxima_ptr": "*fp32",
    "sums_ptr": "*fp32",
    **dict.fromkeys((*STRIDES, "value_head", "window"), "i32"),
    **dict.fromkeys(("scaling", "softcap"), "fp32"),
}
DRAW = {
    "raw_ptr": "*bf16",
    "temperature_ptr": "*fp32",
    "early_ptr": "*i1",
    "is_eos_ptr": "*i1",
    "maxima_ptr": "*fp32",
    "sums_ptr": "*fp32",
    "scale": "fp32",
    "softcap": "fp32",
    "V": "i32",
    "C": "i32",
}


def compiles(kernel, types, constants):
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    return bool(triton.compile(source, target=HOPPER).asm["ptx"])


@pytest.mark.parametrize(("group", "head"), [(6, 128), (1, 8)], ids=["usual", "small"])
@pytest.mark.parametrize(
    ("dtype", "windowed", "capped", "parts"),
    [("bf16", False, False, 2), ("bf16", True, True, 1), ("fp32", True, True, 4)],
)
def test_attention_compiles(dtype, windowed, capped, parts, group, head):
    names = ("query_ptr", "key_ptr", "value_ptr", "keys_ptr", "values_ptr")
    output = "fp32" if parts > 1 else dtype
    types = ATTENTION | dict.fromkeys(names, f"*{dtype}") | {"output_ptr": f"*{output}"}
    blocks = {
        "G_block": attention_kernel.block_of(group),
        "K_block": attention_kernel.block_of(head),
    }
    shape = {"H_kv": 2, "G": group, "K": head, "page_size": 64} | blocks
    kind = {"parts": parts, "capped": capped, "windowed": windowed, "exact": dtype == "fp32"}
    joined = {
        "parts_ptr": "*fp32",
        "maxima_ptr": "*fp32",
        "sums_ptr": "*fp32",
        "output_ptr": "*bf16",
    }

    assert compiles(attention_kernel._part_kernel, types, shape | kind)
    join = {"K": head, "K_block": blocks["K_block"], "parts": 4}
    assert compiles(attention_kernel._join_kernel, joined, join)


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("raced", [False, True])
def test_the_draw_compiles(capped, delayed, raced):
    kind = {"capped": capped, "delayed": delayed, "block": BLOCK}
    # An argument of 1 is compiled in.
    types, known = (DRAW, kind) if raced else (DRAW | {"C": "constexpr"}, kind | {"C": 1})
    drawn = {"seed_ptr": "*i64", "index_ptr": "*i64", "tokens_ptr": "*i64", "logprobs_ptr": "*fp32"}
    picking = {"C_block": 256 if raced else 1, "raced": raced}

    blocks = {"blocks": draw_kernel.BLOCKS if raced else 1}
    assert compiles(draw_kernel._blocks_kernel, types, known | blocks)
    assert compiles(draw_kernel._pick_kernel, types | drawn, known | picking)
