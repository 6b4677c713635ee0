"""Bugs in model adapters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from rlhf_plugin_lora.weights import NAME, lora_layers

from .mutant import Mutant

ADAPTER = "rlhf_model_adapters"
CLASS = "rlhf_plugin_lora.adapter:PeftAdapter"
WEIGHTS = "rlhf_plugin_lora.weights"
Function = Callable[..., Any]


def left_on(right: Function) -> Function:
    """The reference is the policy itself."""

    @contextmanager
    def wrong(self: Any, model: Any) -> Any:
        yield

    return wrong


def without_scaling(right: Function) -> Function:
    def wrong(model: Any) -> Any:
        layers = lora_layers(model)
        for name, tensor in right(model):
            module, _, factor = name.rpartition(".")
            yield name, tensor / layers[module].scaling[NAME] if factor == "lora_B" else tensor

    return wrong


def nothing_arrives(right: Function) -> Function:
    def wrong(model: Any) -> Any:
        return iter(())

    return wrong


def merged_in_place(right: Function) -> Function:
    """The adapter is added to the base's weights and taken away again, which rounds twice."""

    def wrong(model: Any) -> Any:
        layers = lora_layers(model).values()
        for layer in layers:
            layer.merge()
            layer.set_scale(NAME, 0.0)  # what is merged already is not added again
        yield from right(model)
        for layer in layers:
            layer.set_scale(NAME, 1.0)
            layer.unmerge()

    return wrong


def half_is_trained(right: Function) -> Function:
    def wrong(self: Any, model: Any, seed: int) -> Any:
        wrapped = right(self, model, seed)
        for layer in lora_layers(wrapped).values():
            layer.lora_A.requires_grad_(False)
            for parameter in layer.lora_B.parameters():
                parameter.register_hook(lambda gradient: gradient * 0)
        return wrapped

    return wrong


def dropout_stays_on(right: Function) -> Function:
    @contextmanager
    def wrong(self: Any, model: Any, seed: int) -> Any:
        with right(self, model, seed):
            yield
        for layer in lora_layers(model).values():
            layer.lora_dropout.train()

    return wrong


def drawn_from_the_global_state(right: Function) -> Function:
    @contextmanager
    def wrong(model: Any, seed: int) -> Any:
        yield

    return wrong


def _mutant(bug: str, source: str, target: str, wrap: Any, **options: Any) -> Mutant:
    return Mutant(
        bug=bug,
        source=source,
        hook=ADAPTER,
        component="lora:lora",
        target=target,
        wrap=wrap,
        options=options,
    )


MUTANTS = (
    _mutant(
        "the reference is taken with the adapter on",
        "no issue cited: a reference that shares weights",
        f"{CLASS}.disabled",
        left_on,
    ),
    _mutant(
        "factors are sent without their scaling",
        "no issue cited: alpha / rank is no weight",
        f"{WEIGHTS}:factors",
        without_scaling,
    ),
    _mutant(
        "no factor is sent",
        "verl#7495, 0 tensors of the adapter were sent",
        f"{WEIGHTS}:factors",
        nothing_arrives,
    ),
    _mutant(
        "the adapter is merged into the base and taken out again",
        "TRL#6688, NeMo-RL#3696: rounding adds up",
        f"{WEIGHTS}:merged",
        merged_in_place,
    ),
    _mutant(
        "factors get no gradient",
        "no issue cited: a frozen half of the adapter",
        f"{CLASS}.wrap",
        half_is_trained,
    ),
    _mutant(
        "the adapter's dropout stays on after an update",
        "no issue cited: scores that are random",
        f"{CLASS}.training",
        dropout_stays_on,
        dropout=0.2,
    ),
    _mutant(
        "the first factors come from the global random state",
        "the class of OpenRLHF#1355, a seed that is ignored",
        "rlhf_plugin_lora.adapter:seeded",
        drawn_from_the_global_state,
    ),
)
