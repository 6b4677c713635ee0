"""What a snapshot of a GPU's history says of its peak, and how readings become phases."""

import pytest
from benchmarks.memory_at_peak import UNSEEN, Held, held_at_peak, place_of, table
from benchmarks.memory_by_phase import Phases, Reading, report

KEPT = [
    {
        "filename": "/opt/torch/lib/site-packages/torch/nn/functional.py",
        "line": 5,
        "name": "linear",
    },
    {
        "filename": "/opt/torch/lib/site-packages/transformers/models/qwen2/modeling.py",
        "line": 40,
        "name": "forward",
    },
    {"filename": "/site/rlhf_torch/models/modeling.py", "line": 12, "name": "hidden"},
    {"filename": "/site/rlhf_plugin_local/torch_backend.py", "line": 9, "name": "_loss"},
]
PLACE = "modeling.py:12 hidden < modeling.py:40 forward"


def event(action, addr, size, frames=()):
    """As torch writes it: without ``frames`` where no stack was kept."""
    stack = {"frames": list(frames)} if frames else {}
    return {"action": action, "addr": addr, "size": size, **stack}


def block(address, size, state="active_allocated", frames=()):
    return {"address": address, "size": size, "state": state, "frames": list(frames)}


def test_the_peak_has_what_was_there_before_and_nothing_that_was_freed():
    # 100 stay, and 40 were there at the first event: 140, 190, 150, 210 (the peak), 200, 250 - 60 = 190.
    events = [
        event("alloc", 1, 50, KEPT),
        event("free_requested", 9, 40),
        event("free_completed", 9, 40),
        event("alloc", 2, 60, KEPT),
        event("free_requested", 1, 50),
        event("segment_alloc", 0, 10**6),
        event("alloc", 1, 20),
        event("free_requested", 2, 60),
    ]
    blocks = [block(5, 100), block(1, 20), block(6, 10**6, state="inactive")]
    snapshot = {"device_traces": [events], "segments": [{"device": 0, "blocks": blocks}]}

    held = held_at_peak(snapshot)

    nowhere = "no line of Python: the backward pass's own thread"
    assert held == [Held(PLACE, 110, 2), Held(nowhere, 100, 1)]


def test_a_peak_before_the_first_event_is_one_of_blocks_whose_stacks_are_lost():
    snapshot = {
        "device_traces": [[event("free_requested", 9, 40)]],
        "segments": [{"device": 0, "blocks": [block(5, 100, frames=KEPT)]}],
    }

    assert held_at_peak(snapshot) == [Held(PLACE, 100, 1), Held(UNSEEN, 40, 1)]


def test_blocks_of_another_gpu_do_not_count():
    snapshot = {"device_traces": [[], []], "segments": [{"device": 1, "blocks": [block(5, 100)]}]}

    assert held_at_peak(snapshot) == []


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (KEPT, PLACE),
        (KEPT[2:], "modeling.py:12 hidden"),
        (KEPT[:2], "no line of the project < modeling.py:40 forward"),
        (KEPT[:1], "no line of Python: the backward pass's own thread"),
    ],
)
def test_a_place_is_the_innermost_line_of_the_project_and_what_it_called(frames, place):
    assert place_of(frames) == place


def test_a_table_sums_what_has_no_line_of_its_own():
    held = [Held("a", 3 * 2**30, 4), Held("b", 2**30, 2), Held("c", 2**29, 5)]

    lines = table(held, lines=1).splitlines()

    assert [line.split() for line in lines] == [
        ["GiB", "blocks", "of", "4.50", "GiB", "at", "the", "peak"],
        ["3.00", "4", "a"],
        ["1.50", "7", "2", "further", "places"],
    ]


class Readings:
    """Memory with the given peaks, in GiB, one after the other."""

    def __init__(self, *peaks):
        self._peaks = iter(peaks)

    def read(self):
        size = int(next(self._peaks) * 2**30)
        return Reading(size, size // 2, 2 * size)

    def snapshot(self):
        return {"device_traces": [[]], "segments": []}


def test_later_steps_have_one_line_for_each_phase_and_the_first_its_own():
    phases = Phases(Readings(1, 9, 4, 2, 5, 3), steps=3)
    for _ in range(3):
        phases.begin_learning()
        phases.end_update()

    largest = [(one["step"] > 1, one["phase"], one["peak"]) for one in phases.largest()]

    assert largest == [
        (False, "generation", 1.0),
        (False, "optimizer step", 9.0),
        (True, "generation", 5.0),
        (True, "optimizer step", 3.0),
    ]
    assert phases.snapshot is not None


def test_the_report_sets_the_peak_against_the_plan():
    phases = Phases(Readings(1, 8), steps=2)
    phases.begin_learning()
    phases.end_update()
    process = {
        "torch_peak_gib": 10.0,
        "parts_gib": {"policy: weights": 3.0},
        "roles": {"policy": {"resident_gib": 4.0}},
    }

    text = report(phases, {"gpus": [{"processes": [process]}]})

    assert "peak 8.00, planned 10.00 (+25.0%):" in text
    assert "3.00  policy: weights" in text
