"""How weights are put into buckets on their way to an engine."""

import torch

from rlhf_torch.models import buckets
from rlhf_torch.models.buckets import buckets_of


def names_of(sizes, monkeypatch, limit):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", limit)
    weights = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sizes.items()}
    return ["".join(bucket) for bucket in buckets_of(weights.items())]


def test_buckets_are_filled_in_order_up_to_their_size(monkeypatch):
    """4 + 6 bytes are 10; 1 more would be 11."""
    assert names_of({"a": 4, "b": 6, "c": 1, "d": 9}, monkeypatch, 10) == ["ab", "cd"]


def test_a_tensor_that_is_larger_goes_alone(monkeypatch):
    assert names_of({"a": 4, "b": 11, "c": 4}, monkeypatch, 10) == ["a", "b", "c"]
    assert names_of({}, monkeypatch, 10) == []


def test_what_is_in_a_bucket_has_no_gradient():
    weight = torch.nn.Parameter(torch.zeros(2))

    (bucket,) = buckets_of([("weight", weight)])

    assert not bucket["weight"].requires_grad
    assert bucket["weight"].data_ptr() == weight.data_ptr()
