"""GPUs that are visible, from the lines of nvidia-smi."""

import pytest

from rlhf_config.automatic import accelerators
from rlhf_config.automatic.accelerators import visible, visible_accelerators
from rlhf_core.contracts import Accelerator

TOLD = ["0, GPU-aa, NVIDIA H200, 143771", "1, GPU-bb, NVIDIA A10, 23028"]
H200 = Accelerator(name="NVIDIA H200", memory_gib=143771 / 1024)
A10 = Accelerator(name="NVIDIA A10", memory_gib=23028 / 1024)


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, (H200, A10)),
        ("", ()),
        ("-1", ()),
        ("1,0", (A10, H200)),
        ("1", (A10,)),
        ("GPU-b", (A10,)),
        ("0,7,1", (H200,)),  # CUDA ends the list at what it does not know
    ],
)
def test_visible_devices_are_those_that_cuda_would_show(allowed, expected):
    assert visible(TOLD, allowed) == expected


def test_what_the_driver_does_not_tell_is_unknown():
    told = ["0, , GPU, ", "1, GPU-bb, GB10, [N/A]"]
    assert visible(told, None) == (Accelerator(name="GPU"), Accelerator(name="GB10"))


def test_torch_for_cpus_sees_none(monkeypatch):
    monkeypatch.setattr(accelerators, "version", lambda name: "2.11.0+cpu")
    assert visible_accelerators() == ()
