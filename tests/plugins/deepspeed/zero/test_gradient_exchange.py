"""Gradients that ranks exchange by pieces: the sum over ranks and passes, and the pieces themselves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.scale
pytest.importorskip("deepspeed")
sys.path.insert(0, str(Path(__file__).parent))
import exchanging_rank as ranks_program  # noqa: E402

from rlhf_plugin_deepspeed.zero.pieces import cut  # noqa: E402

HANGS_S = 300


def whole_gradient(dtype, ranks):
    """The gradient of each parameter group as one vector, summed in float32, from passes in ``dtype``."""
    model = ranks_program.model_of(dtype)
    total = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    for rank in range(ranks):
        for number in range(ranks_program.PASSES):
            model.zero_grad()
            ranks_program.loss_of(model, rank, number).backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    total[name] += parameter.grad.float()
    return [
        torch.cat([t.flatten() for t in total.values() if (t.dim() > 1) == is_matrix])
        for is_matrix in (True, False)
    ]


@pytest.mark.parametrize("ranks", [3])
def test_each_rank_has_its_part_of_the_sum(tmp_path, ranks):
    """Also after a pass that one rank gave up, and with a parameter that has no gradient in some pass."""
    command = [sys.executable, ranks_program.__file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(tmp_path / "meeting"), str(tmp_path)],
            env=environment,
        )
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(HANGS_S) for process in started] == [0] * ranks
    finally:
        for process in started:
            process.kill()

    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    for dtype in (torch.float32, torch.bfloat16):
        for group, expected in enumerate(whole_gradient(dtype, ranks)):
            summed = torch.cat([one[str(dtype)][group] for one in found])
            padding = summed[len(expected) :]
            torch.testing.assert_close(summed[: len(expected)], expected, rtol=1e-6, atol=1e-5)
            assert not padding.any()


def test_pieces_cover_every_parameter_once_and_the_last_modules_come_first():
    sizes = {"first": (50, 3), "second": (4,), "third": (5,), "fourth": (2, 10), "fifth": (100,)}
    vector = torch.zeros(512)
    named, offset = {}, 0
    for name, size in sizes.items():
        parameter = nn.Parameter(torch.empty(0))
        parameter.data = vector[offset : offset + torch.Size(size).numel()].view(size)
        named[name] = parameter
        offset += parameter.numel() + 1

    pieces = cut(named, [vector], 64, 4)

    assert [piece.places[0].name for piece in pieces] == [
        *("fifth", "fifth"),
        "fourth",
        "second",
        *("first", "first", "first"),
    ]
    assert [place.name for place in pieces[3].places] == ["second", "third"]
    assert [piece.length for piece in pieces if piece.places[0].name == "first"] == [52, 52, 46]
    reached = torch.zeros(512, dtype=torch.int64)
    for piece in pieces:
        for place in piece.places:
            begin = piece.start + place.offset
            reached[begin : begin + place.length] += 1
            own = (named[place.name].data_ptr() - vector.data_ptr()) // 4
            assert begin == own + place.start
    assert int(reached.sum()) == sum(p.numel() for p in named.values())
    assert int(reached.max()) == 1
