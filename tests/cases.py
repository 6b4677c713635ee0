"""Which tests a run has, and in which order. Of the cases of a long test CI runs some, and `make test-all` all."""

from collections.abc import Iterable

import pytest


def one_in(number: int, cases: Iterable[object], *, first: int = 0) -> list:
    """Return the cases, of which CI runs each ``number``-th, from ``first`` on; the others have the marker matrix."""
    return [
        case if index % number == first else pytest.param(case, marks=pytest.mark.matrix)
        for index, case in enumerate(cases)
    ]


MARKERS = {"slow", "gpu", "scale", "matrix", "learning"}
"""Markers by which ``-m`` chooses tests."""

LONGEST = (
    "tests/integration/test_advice_by_place.py",
    "tests/benchmarks/test_diagnoses.py",
    "tests/integration/test_kill_and_resume.py",
    "tests/benchmarks/test_audits.py",
    "tests/integration/test_adapters.py",
    "tests/integration/test_scale_learning.py",
    "tests/plugins/deepspeed/test_two_ranks.py",
    "tests/plugins/deepspeed/test_undoing.py",
    "tests/plugins/deepspeed/test_one_rank.py",
    "tests/integration/test_scale.py",
    "tests/integration/test_scale_adapters.py",
    "tests/integration/test_hangup.py",
    "tests/plugins/deepspeed/test_adapters.py",
    "tests/plugins/deepspeed/parallel/test_sequence_attention.py",
    "tests/plugins/deepspeed/test_moving.py",
    "tests/mutants/test_mutants.py",
    "tests/integration/test_learning.py",
    "tests/integration/test_async.py",
    "tests/cli/test_new.py",
    "tests/integration/test_learning_with_a_critic.py",
    "tests/examples/test_pipeline.py",
    "tests/plugins/rewards/test_bad_functions.py",
    "tests/plugins/loggers/test_loggers.py",
    "tests/plugins/loggers/test_no_server.py",
    "tests/integration/test_a_new_backend.py",
    "tests/release/test_distributions.py",
    "tests/integration/test_train_command.py",
    "tests/integration/test_rm.py",
    "tests/integration/test_combinations.py",
    "tests/libs/guard/rewards/test_host.py",
    "tests/plugins/test_conformance.py",
    "tests/plugins/fsdp/test_two_ranks.py",
    "tests/integration/test_open_places.py",
    "tests/examples/test_environment_packages.py",
    "tests/integration/test_a_package_of_hooks.py",
    "tests/examples/test_toys.py",
    "tests/examples/test_notebook.py",
    "tests/plugins/deepspeed/test_preferences.py",
    "tests/plugins/deepspeed/test_compiled_layers.py",
    "tests/plugins/deepspeed/test_images.py",
    "tests/plugins/deepspeed/parallel/test_tensor_shards.py",
    "tests/plugins/vllm/worker/test_real_grammar.py",
    "tests/plugins/local/engine/test_expert_routes.py",
    "tests/plugins/vlm/test_agreement.py",
    "tests/plugins/vlm/test_training.py",
    "tests/plugins/vlm/test_reward_model.py",
    "tests/plugins/plan/test_command.py",
    "tests/test_repository.py",
    "tests/plugins/lora/test_training.py",
)
"""Files that start first: one that started last would keep one of two processes busy, and the other would wait."""


def markers_named_in(text: str) -> set[str]:
    """Return the markers that a test file names."""
    named = {marker for marker in MARKERS if marker in text}
    return named | {"matrix"} if one_in.__name__ in text else named


def could_be_chosen(text: str, expression: str) -> bool:
    """Return whether a test file names every marker without which ``-m expression`` chooses nothing."""
    parts = expression.split(" and ")
    if any(part.removeprefix("not ") not in MARKERS for part in parts):
        return True  # other expressions are pytest's alone
    return {part for part in parts if part in MARKERS} <= markers_named_in(text)
