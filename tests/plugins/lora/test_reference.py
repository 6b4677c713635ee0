"""The policy without its adapter is the base, to the bit, and needs no second model."""

import numpy as np
import pytest
import torch
from tests.plugins.lora.conftest import ADAPTERS, base_of, trained
from tests.plugins.torch.conftest import make_batch, make_plan, make_trajectories

from rlhf_core import PluginError
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES

PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "mixed": {"dtype": "float32", "compute_dtype": "bfloat16"},
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("adapter", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_is_the_base_to_the_bit(start, spec_of, family, adapter, precision, train):
    settings = dict(PRECISIONS[precision])
    dtype = settings.pop("dtype")
    rows = make_trajectories()
    plain = start(spec_of(family=family, dtype=dtype, adapter=None), fresh=True, **settings)
    options = {"modules_to_save": ["model.norm"]}
    backend = start(spec_of(adapter, family, dtype=dtype, options=options), **settings)
    train(backend)

    actual = backend.base_logprobs(rows)

    np.testing.assert_array_equal(actual, plain.logprobs(rows))
    assert np.abs(actual - backend.logprobs(rows)).max() > 1e-3


def test_the_reference_of_a_quantized_policy_is_the_quantized_base(start, spec_of, train):
    rows = make_trajectories()
    backend = start(spec_of("qlora"), fresh=True)
    first = backend.logprobs(rows)  # B is 0
    train(backend)

    np.testing.assert_array_equal(backend.base_logprobs(rows), first)
    assert np.abs(backend.logprobs(rows) - first).max() > 0


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_asking_for_the_reference_changes_nothing(start, spec_of, adapter):
    rows, batch = make_trajectories(), make_batch()
    asked, other = (start(spec_of(adapter)) for _ in range(2))
    versions = [weight._version for _, weight in asked._model.named_weights()]
    scores = asked.logprobs(rows)

    asked.base_logprobs(rows)

    assert [weight._version for _, weight in asked._model.named_weights()] == versions
    np.testing.assert_array_equal(asked.logprobs(rows), scores)
    for backend in (asked, other):
        backend.train_step(batch, make_plan(batch))
    torch.testing.assert_close(trained(asked), trained(other), atol=0, rtol=0)


def test_what_another_part_froze_stays_frozen(start, spec_of):
    backend = start(spec_of())
    name = next(iter(trained(backend)))
    dict(backend._model.named_weights())[name].requires_grad_(False)

    backend.base_logprobs(make_trajectories())

    assert name not in trained(backend)


def test_an_error_within_leaves_the_adapter_on(start, spec_of):
    backend, rows = start(spec_of()), make_trajectories()
    scores = backend.logprobs(rows)

    with pytest.raises(ZeroDivisionError), backend._model.without_adapter():
        _ = 1 / 0

    np.testing.assert_array_equal(backend.logprobs(rows), scores)


def test_the_reference_holds_no_second_copy_of_a_weight(start, spec_of):
    backend = start(spec_of())
    base = sum(weight.numel() for weight in base_of(backend).values())
    adapter = sum(weight.numel() for weight in trained(backend).values())

    backend.base_logprobs(make_trajectories())

    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in backend._lm.model.state_dict().values()
    }
    assert sum(held.values()) == 4 * (base + adapter)


def test_a_role_without_an_adapter_has_no_base_beside_it(start, spec_of):
    with pytest.raises(PluginError, check=has_code("adapter/none")):
        start(spec_of(adapter=None), fresh=True).base_logprobs(make_trajectories())
