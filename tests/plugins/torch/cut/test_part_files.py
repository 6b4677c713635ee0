"""Training state that ranks share, on its way into files."""

from types import SimpleNamespace

import pytest
import torch

from rlhf_core import CheckpointError
from rlhf_testing.errors import has_code
from rlhf_torch.cut.fragment import Fragment
from rlhf_torch.cut.part_files import save_parts
from rlhf_torch.ranks.ranks import Ranks


def test_state_that_cannot_be_cut_is_no_state_of_another_run(tmp_path):
    master = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([master], lr=0.1)
    optimizer.state[master] = {"row_var": torch.zeros(2)}  # two numbers for four elements
    training = SimpleNamespace(
        ema=[],
        fragments=[Fragment(name="w", vector=0, offset=0, start=0, length=4)],
        masters=[master],
        optimizer=optimizer,
        reference=[],
        tensor_parallel=1,
    )

    with pytest.raises(CheckpointError, check=has_code("optimizer/needs-whole-parameters")):
        save_parts(tmp_path, training, Ranks(0, 1, torch.device("cpu")))
