"""A run's state that goes from two ranks to one, to another stage, and back to two: the same numbers, to the bit."""

import json

import pytest
import torch
from safetensors import safe_open

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("deepspeed")
JOURNEYS = {1: (2, 3), 2: (3, 1), 3: (1, 2)}
"""Stage of the two ranks that stop: stage of the one rank in between, stage of the two ranks that go on."""


def whole_state(folder):
    """Every tensor of a checkpoint, put together from the files of all ranks; and what is said of the whole."""
    pieces = {}
    state = json.loads((folder / "state.json").read_text())
    for part in range(state["parts"]):
        path = folder / f"part-{part:05d}-of-{state['parts']:05d}.safetensors"
        with safe_open(path, framework="pt") as file:
            runs = json.loads(file.metadata()["runs"])
            for key in sorted(file.keys()):
                start, stop, _ = runs[key.rpartition("::")[0]]
                pieces.setdefault(key, []).append((start, stop, file.get_tensor(key)))
    tensors = {}
    for key, found in pieces.items():
        found.sort(key=lambda piece: piece[0])
        tensors[key] = torch.cat([tensor.reshape(-1) for _, _, tensor in found])
        if found[0][2].dim() == 0:  # one number for the whole parameter, in every file
            assert len(tensors[key].unique()) == 1
            tensors[key] = tensors[key][:1]
        else:
            assert [piece[0] for piece in found] == [0, *(piece[1] for piece in found[:-1])]
    del state["parts"]
    return tensors, state


@pytest.fixture(scope="module")
def handed(two_ranks, models, scenarios, tmp_path_factory):
    """Checkpoints that one rank has read and written again, as ``stageN/rejoining/handed_KIND`` for two ranks."""
    from rlhf_plugin_deepspeed.backend import DeepSpeedBackend
    from rlhf_plugin_deepspeed.config import DeepSpeedConfig

    out = tmp_path_factory.mktemp("rejoined")
    place = scenarios.Place(lambda **o: DeepSpeedBackend(DeepSpeedConfig(**o)), models, out)
    for first, (between, last) in JOURNEYS.items():
        for kind, changes in scenarios.KINDS.items():
            options = {"device": "cpu", "zero_stage": between}
            backend = place.start(**{**scenarios.TRAINING, **changes}, options=options)
            backend.load(two_ranks(first, "resuming") / f"saved_{kind}")
            backend.save(out / f"stage{last}" / "rejoining" / f"handed_{kind}")
            backend.close()
    return out


@pytest.fixture(scope="module")
def rejoined(handed, run_ranks):
    return run_ranks("rejoined", handed)


@pytest.mark.parametrize("first", JOURNEYS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "whole", "whole_bfloat16"])
def test_state_comes_back_to_the_bit(two_ranks, rejoined, first, kind):
    """Weights, average, optimizer state and counters, after two other cuts of them."""
    _, last = JOURNEYS[first]
    original = whole_state(two_ranks(first, "resuming") / f"saved_{kind}")

    again = whole_state(rejoined / f"stage{last}" / "rejoining" / f"again_{kind}")

    assert again[1] == original[1]
    assert {key.rpartition("::")[2] for key in original[0]} >= {"float32", "ema"}
    assert any("optimizer." in key for key in original[0])
    torch.testing.assert_close(again[0], original[0], atol=0, rtol=0)


@pytest.mark.parametrize("first", JOURNEYS)
def test_two_ranks_go_on_as_if_nobody_had_left(two_ranks, rejoined, first):
    """Two ranks at another stage end where the run that was never stopped ends, up to rounding."""
    _, last = JOURNEYS[first]

    for kind, atol in (
        ("float32", 1e-6),
        ("bfloat16", 1e-2),
        ("whole", 1e-6),
        ("whole_bfloat16", 1e-2),
    ):
        ends = [
            safe_tensors(folder / f"{name}_{kind}" / "model.safetensors")
            for folder, name in (
                (two_ranks(first, "resuming"), "straight"),
                (rejoined / f"stage{last}" / "rejoining", "went_on"),
            )
        ]
        torch.testing.assert_close(ends[1], ends[0], atol=atol, rtol=0)


def safe_tensors(path):
    with safe_open(path, framework="pt") as file:
        return {key: file.get_tensor(key) for key in sorted(file.keys())}
