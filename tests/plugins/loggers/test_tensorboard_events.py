import os
import resource
import signal
import struct
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.images import noisy, saved

from rlhf_core import StorageError
from rlhf_core.contracts import RolloutSample, RunResult
from rlhf_plugin_loggers.tensorboard_events import TensorBoardEvents
from rlhf_testing.errors import has_code

END = RunResult(status="finished", steps=1, seconds=1.0)


@pytest.fixture
def limit():
    """Sets the size that no file of this process may exceed, as on a full disk; with None, as it was."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def set_to(num_bytes):
        soft = before[0] if num_bytes is None else num_bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    yield set_to
    set_to(None)
    signal.signal(signal.SIGXFSZ, handler)


def scalars(folder, tag):
    """What TensorBoard itself reads back: (step, value) pairs."""
    reader = EventAccumulator(str(folder)).Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_tensorboard_reads_back_what_was_written(tmp_path):
    events = TensorBoardEvents(tmp_path / "tensorboard", 0)
    events.eval_end(0, {"eval/test/T0/pass@1": 0.25})
    events.step_end(1, {"reward/mean": 0.5, "timing/step_s": 2.0})
    events.step_end(2, {"reward/mean": 0.75})
    events.run_end(END)

    assert scalars(tmp_path / "tensorboard", "reward/mean") == [(1, 0.5), (2, 0.75)]
    assert scalars(tmp_path / "tensorboard", "timing/step_s") == [(1, 2.0)]
    assert scalars(tmp_path / "tensorboard", "eval/test/T0/pass@1") == [(0, 0.25)]


@pytest.mark.parametrize("room", [0, 5, 20])
def test_an_event_that_has_no_room_is_named_and_leaves_the_events_before(tmp_path, limit, room):
    events = TensorBoardEvents(tmp_path / "tensorboard", 0)
    events.step_end(1, {"reward/mean": 0.5})
    (file,) = (tmp_path / "tensorboard").iterdir()
    before = file.read_bytes()

    limit(len(before) + room)
    with pytest.raises(
        StorageError,
        match=r"tfevents.* could not be written: File too large",
        check=has_code("output/not-written"),
    ):
        events.step_end(2, {"reward/mean": 0.75})
    limit(None)

    assert file.read_bytes() == before
    assert scalars(tmp_path / "tensorboard", "reward/mean") == [(1, 0.5)]


def test_a_file_without_room_for_its_first_event_is_not_there(tmp_path, limit):
    limit(10)
    with pytest.raises(StorageError, match="File too large", check=has_code("output/not-written")):
        TensorBoardEvents(tmp_path / "tensorboard", 0)
    limit(None)

    assert list((tmp_path / "tensorboard").iterdir()) == []


def test_images_of_samples_are_in_the_events_of_every_few_steps(tmp_path):
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(saved(noisy(8 + number, 6)))
    seen = [
        RolloutSample(
            uid=str(number), prompt="", response="", reward=0.0, truncated=False, images=(file,)
        )
        for number, file in enumerate(files)
    ]
    blind = RolloutSample(uid="9", prompt="", response="", reward=0.0, truncated=False)

    for name, number in (("two", 2), ("none", 0)):
        events = TensorBoardEvents(tmp_path / name, 0, num_images=number, images_every=5)
        for step in (4, 5, 10):
            events.rollout_end(step, [blind, *seen])
        events.run_end(END)

    reader = EventAccumulator(str(tmp_path / "two")).Reload()
    assert sorted(reader.Tags()["images"]) == ["samples/image_0", "samples/image_1"]
    found = reader.Images("samples/image_1")
    assert [event.step for event in found] == [5, 10]
    assert (found[0].width, found[0].height) == (9, 6)
    assert found[0].encoded_image_string == files[1].read_bytes()
    assert EventAccumulator(str(tmp_path / "none")).Reload().Tags()["images"] == []


def test_a_resumed_run_replaces_the_steps_that_it_does_again(tmp_path):
    killed = TensorBoardEvents(tmp_path, 0)
    for step in range(1, 6):
        killed.step_end(step, {"reward/mean": -1.0})

    resumed = TensorBoardEvents(tmp_path, 3)
    for step in range(4, 7):
        resumed.step_end(step, {"reward/mean": 1.0})
    resumed.run_end(END)

    assert scalars(tmp_path, "reward/mean") == [
        (1, -1.0),
        (2, -1.0),
        (3, -1.0),
        (4, 1.0),
        (5, 1.0),
        (6, 1.0),
    ]
    killed.run_end(END)


def test_each_step_is_in_the_file_at_once(tmp_path):
    events = TensorBoardEvents(tmp_path, 0)
    events.step_end(1, {"reward/mean": 0.5})

    assert scalars(tmp_path, "reward/mean") == [(1, 0.5)]
    events.run_end(END)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300])
def test_values_that_are_no_float32_are_recorded_too(tmp_path, value):
    events = TensorBoardEvents(tmp_path, 0)
    events.step_end(1, {"reward/mean": value})
    events.run_end(END)

    ((step, read),) = scalars(tmp_path, "reward/mean")

    assert step == 1
    # As float32: NaN stays NaN, what is too large becomes infinite.
    expected = value if abs(value) < 1e38 or value != value else float("inf") * (value > 0 or -1)
    assert struct.pack("d", read) == struct.pack("d", expected)


def test_writing_events_imports_neither_torch_nor_tensorflow(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from rlhf_plugin_loggers.tensorboard_events import TensorBoardEvents\n"
        "TensorBoardEvents(Path(sys.argv[1]), 0).step_end(1, {'a': 1.0})\n"
        "print({'torch', 'tensorflow'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},  # an open file at exit warns
    )

    assert done.stdout.strip() == "set()"
