import numpy as np
import pytest
import torch

from rlhf_core.objective import on_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_values_and_dtype_are_those_of_the_array(dtype):
    array = np.array([[0, 1, 2], [3, 4, 5]], dtype=dtype)

    tensor = on_device(array, CPU)

    np.testing.assert_array_equal(tensor.numpy(), array, strict=True)


def test_a_tensor_on_the_host_needs_no_copy():
    tensor = torch.arange(3)

    assert on_device(tensor, CPU).data_ptr() == tensor.data_ptr()


@pytest.mark.gpu
def test_the_host_does_not_wait_for_the_device():
    device = torch.device("cuda")
    array = np.arange(100_000)
    on_device(array, device)  # the first pinned block is allocated by a call that waits
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    work = torch.cuda.Event()
    work.record()

    tensor = on_device(array, device)

    assert not work.query()
    np.testing.assert_array_equal(tensor.cpu().numpy(), array)
