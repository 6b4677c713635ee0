"""Peaks of a run whose engine sleeps, by hand."""

from dataclasses import replace

import pytest

from rlhf_plugin_plan.machine.assumptions import FRAGMENTATION
from rlhf_plugin_plan.memory.sleep import PHASES, ProcessShares, sleep_peaks

KEPT = 1 + FRAGMENTATION
TRAINER = ProcessShares(
    fixed=1.0,
    weights=10.0,
    state=60.0,
    work=30.0,
    engine={"bucket for the engine's weights": 2.0},
    is_engine=False,
)
VLLM = ProcessShares(
    fixed=0.0,
    weights=0.0,
    state=0.0,
    work=0.0,
    engine={"weights": 10.0, "KV cache": 40.0, "activations": 3.0, "CUDA context": 1.0},
    is_engine=True,
)


def test_engine_and_trainer_take_turns():
    peaks = sleep_peaks([TRAINER, VLLM], shares_weights=False, keeps_in_host=True)

    assert tuple(peaks.asleep) == PHASES
    # The start: weights 10 and the bucket 2, beside all of vLLM's 54.
    assert peaks.asleep["start"] == pytest.approx(1 + KEPT * 12 + 54)
    assert peaks.asleep["generating"] == pytest.approx(1 + 54)
    # Weights and bucket, beside vLLM's context 1 and weights 10.
    assert peaks.asleep["delivering weights"] == pytest.approx(1 + KEPT * 12 + 11)
    assert peaks.asleep["training"] == pytest.approx(1 + KEPT * 100 + 1)
    assert peaks.awake["training"] == pytest.approx(1 + KEPT * 102 + 54)
    assert peaks.moved == 2 * (70 + 10)


def test_level_2_moves_no_weights_of_the_engine():
    peaks = sleep_peaks([TRAINER, VLLM], shares_weights=False, keeps_in_host=False)

    assert peaks.moved == 2 * 70


def test_gradients_leave_without_a_copy_and_state_comes_back_beside_passes():
    """Of 60 of state 15 are gradients, which nobody reads again; what is left goes both ways, and weights do."""
    trainer = replace(TRAINER, emptied=15.0)

    peaks = sleep_peaks([trainer, VLLM], shares_weights=False, keeps_in_host=False)

    assert peaks.moved == 2 * (10 + 45)
    assert peaks.beside == 45
    assert peaks.asleep["generating"] == pytest.approx(1 + 54)


def test_weights_that_the_engine_shares_stay():
    """One process: state moves, weights do not, and the cache is freed while training."""
    process = ProcessShares(
        fixed=1.0,
        weights=10.0,
        state=60.0,
        work=30.0,
        engine={"KV cache": 40.0, "weights cast to bfloat16": 5.0},
        is_engine=False,
    )

    peaks = sleep_peaks([process], shares_weights=True, keeps_in_host=True)

    assert peaks.asleep["generating"] == pytest.approx(1 + KEPT * (10 + 45))
    assert peaks.asleep["training"] == pytest.approx(1 + KEPT * (10 + 60 + 30 + 5))
    assert peaks.awake["training"] == pytest.approx(1 + KEPT * (100 + 45))
    assert peaks.moved == 2 * 60


def test_state_alone_may_leave():
    peaks = sleep_peaks([TRAINER, VLLM], shares_weights=False, keeps_in_host=False, leaving="state")

    assert peaks.asleep["start"] == pytest.approx(1 + KEPT * 12 + 54)
    assert peaks.asleep["generating"] == pytest.approx(1 + KEPT * 10 + 54)
    assert peaks.asleep["delivering weights"] == pytest.approx(1 + KEPT * 12 + 11)
    assert peaks.asleep["training"] == pytest.approx(1 + KEPT * 100 + 1)
    assert peaks.moved == 2 * 60


def test_nothing_leaves_where_only_the_engine_makes_room():
    """Weights 10 and state 60 are beside all of vLLM, and 30 of work only while it sleeps."""
    peaks = sleep_peaks(
        [TRAINER, VLLM], shares_weights=False, keeps_in_host=False, leaving="nothing"
    )

    assert peaks.asleep["generating"] == pytest.approx(1 + KEPT * 70 + 54)
    assert peaks.asleep["delivering weights"] == pytest.approx(1 + KEPT * 72 + 11)
    assert peaks.asleep["training"] == pytest.approx(1 + KEPT * 100 + 1)
    assert peaks.moved == 0
