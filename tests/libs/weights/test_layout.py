"""Plans: every weight has a place, in order, and no bucket is larger than it may be."""

import pytest
import torch

from rlhf_weights import ALIGNMENT, aligned, plan_weights, torch_dtype, views

WEIGHTS = {
    "a": torch.zeros(3, 5),
    "b": torch.zeros(700, dtype=torch.bfloat16),
    "scalar": torch.tensor(7.0),
    "empty": torch.zeros(0, 4),
    "large": torch.zeros(50, 60),
    "last": torch.zeros(9, dtype=torch.int64),
}


@pytest.mark.parametrize("bucket_bytes", [1, 512, 2048, 1 << 20])
def test_all_weights_have_a_slot_in_order_and_slots_do_not_overlap(bucket_bytes):
    plan = plan_weights([WEIGHTS], bucket_bytes)

    slots = [slot for bucket in plan.buckets for slot in bucket]
    assert [slot.name for slot in slots] == list(WEIGHTS)
    assert [tuple(slot.shape) for slot in slots] == [tuple(w.shape) for w in WEIGHTS.values()]
    assert plan.num_bytes == sum(weight.nbytes for weight in WEIGHTS.values())
    for bucket in plan.buckets:
        ends = [slot.offset + slot.nbytes for slot in bucket]
        assert all(slot.offset % ALIGNMENT == 0 for slot in bucket)
        assert all(slot.offset >= end for slot, end in zip(bucket[1:], ends, strict=False))
        assert ends[-1] <= plan.bucket_bytes
        assert ends[-1] <= bucket_bytes or len(bucket) == 1


@pytest.mark.parametrize("before", [0, 8])
def test_views_of_many_slots_are_those_of_each(before):
    (slots,) = plan_weights([WEIGHTS], 1 << 20).buckets
    store = torch.arange(1 << 15, dtype=torch.int32).view(torch.uint8)[before : -before - 3]

    for slot, view in zip(slots, views(slots, store), strict=True):
        expected = slot.view(store)
        assert (view.dtype, view.shape, view.data_ptr()) == (
            *(expected.dtype, expected.shape),
            expected.data_ptr(),
        )
        assert view.is_contiguous()
        assert torch.equal(view.view(-1).view(torch.uint8), expected.view(-1).view(torch.uint8))


def test_the_plan_does_not_depend_on_how_weights_come():
    one_by_one = [{name: weight} for name, weight in WEIGHTS.items()]

    assert plan_weights(one_by_one, 2048) == plan_weights([WEIGHTS], 2048)


def test_a_bucket_takes_what_fits():
    # Rounded up to 256: a 256, b 1536, scalar 256 fill 2048, and empty needs nothing; large is 12000 bytes.
    plan = plan_weights([WEIGHTS], 2048)

    names = [[slot.name for slot in bucket] for bucket in plan.buckets]
    assert names == [["a", "b", "scalar", "empty"], ["large"], ["last"]]
    assert plan.bucket_bytes == 12000


def test_offsets_are_rounded_up():
    assert [aligned(offset) for offset in (0, 1, 256, 257)] == [0, 256, 256, 512]


def test_only_dtypes_are_taken_from_torch():
    assert torch_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ValueError, match="got 'load'"):
        torch_dtype("load")
