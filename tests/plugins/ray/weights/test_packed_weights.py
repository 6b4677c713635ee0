"""Weights as bytes and back."""

import torch

from rlhf_plugin_ray.weights.packed_weights import ALIGNMENT, FetchedWeights, pack, unpack

WEIGHTS = {
    "half": torch.tensor([[1.5, -2.25], [float("inf"), 3e-39]], dtype=torch.bfloat16),
    "single": torch.linspace(0, 1, 33),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "strided": torch.arange(12.0).reshape(3, 4).T,
    "empty": torch.zeros(0, 5),
}


def test_every_bit_type_and_shape_survives():
    bucket = pack(WEIGHTS)

    actual = unpack(bucket)

    assert list(actual) == list(WEIGHTS)
    for name, expected in WEIGHTS.items():
        torch.testing.assert_close(actual[name], expected, rtol=0, atol=0)
        assert actual[name].dtype == expected.dtype
    assert all(place.start % ALIGNMENT == 0 for place in bucket.places)


def test_a_pack_is_a_snapshot_and_what_is_unpacked_may_be_changed():
    weight = torch.ones(4)
    bucket = pack({"weight": weight})
    bucket.data.setflags(write=False)  # as the object store gives it

    weight.zero_()
    unpacked = unpack(bucket)["weight"]
    unpacked.mul_(2)

    assert unpacked.tolist() == [2.0] * 4
    assert unpack(bucket)["weight"].tolist() == [1.0] * 4


def test_fetched_weights_can_be_read_twice():
    source = FetchedWeights([pack({"a": torch.ones(2)}), pack({"b": torch.zeros(3)})])

    assert source.module() is None
    for _ in range(2):
        assert [list(bucket) for bucket in source.buckets()] == [["a"], ["b"]]
