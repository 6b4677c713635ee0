"""Bytes of the types that a role computes with."""

import pytest

from rlhf_plugin_plan.model.precision import Precision


@pytest.mark.parametrize(
    ("parameters", "compute", "expected"),
    [
        ("float32", "float32", (4, 4, False)),
        ("float32", "bfloat16", (4, 2, True)),
        ("bfloat16", "bfloat16", (2, 2, False)),
    ],
)
def test_bytes_follow_from_the_types(parameters, compute, expected):
    precision = Precision(parameters=parameters, compute=compute)

    assert (precision.weight_bytes, precision.compute_bytes, precision.casts) == expected
