"""Routes to experts, as vLLM tells them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_core import CapabilityError, RolloutError
from rlhf_core.contracts import EngineSpec
from rlhf_plugin_vllm.routes import ARGUMENT, ToldRoutes, arguments
from rlhf_testing.errors import has_code


def told_by(*, experts=4, wanted=True):
    """Routes of an engine of three layers, the first without experts."""

    class Workers:
        async def ask(self, method):
            assert method == "rlhf_expert_layers"
            return [{"layers": [1, 2], "experts": experts}] * 2

    spec = EngineSpec(
        model_path="model",
        dtype="float32",
        max_length=8,
        max_concurrency=1,
        eos_token_ids=(),
        returns_routes=wanted,
    )
    routes = ToldRoutes(Workers(), spec)
    asyncio.run(routes.start())
    return routes


def output(routes, num_tokens=2):
    return SimpleNamespace(token_ids=list(range(num_tokens)), routed_experts=routes)


@pytest.mark.parametrize(("experts", "dtype"), [(128, np.int8), (129, np.int16)])
def test_layers_without_experts_are_left_out(make_request, experts, dtype):
    ids = np.arange(4 * 3 * 2, dtype=np.uint8).reshape(4, 3, 2)

    found = told_by(experts=experts).of(make_request((5, 6, 7)), output(ids))

    assert found.dtype == dtype
    np.testing.assert_array_equal(found, ids[:, 1:])


@pytest.mark.parametrize("routes", [None, np.zeros((5, 3, 2)), np.zeros((4, 2, 2)), np.zeros(4)])
def test_routes_of_other_tokens_are_an_error(make_request, routes):
    with pytest.raises(
        RolloutError, match=r"\(4, layers", check=has_code("rollout/shape-of-routes")
    ):
        told_by().of(make_request((5, 6, 7)), output(routes))


def test_an_engine_that_nobody_asked_tells_none(make_request):
    assert told_by(wanted=False).of(make_request((5,)), output(None)) is None


def test_vllm_is_asked_where_it_can_tell_and_refused_by_name_elsewhere():
    possible = {"known": {ARGUMENT}, "on_cpu": False, "prefix_caching": True}

    assert arguments(**possible) == {ARGUMENT: True}
    for change, why in (
        ({"known": set()}, "has no argument"),
        ({"on_cpu": True}, "needs Triton"),
        ({"prefix_caching": False}, r"engine\.vllm\.prefix_caching is off"),
    ):
        with pytest.raises(
            CapabilityError,
            match=rf"^algo.*{why}.*--engine embedded",
            check=has_code("vllm/no-routes"),
        ):
            arguments(**possible | change)
