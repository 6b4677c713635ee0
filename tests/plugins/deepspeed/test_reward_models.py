"""Two ranks that train reward models, against one rank of the torch backend, down to the exported classifiers."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend

pytestmark = [pytest.mark.scale, pytest.mark.slow]

WAYS = {"judged answers": (0, 1, 2, 3), "tokens of judged": (3,), "matrices of judged": (1, 2)}
CASES = [
    pytest.param(way, stage, marks=[] if way == "tokens of judged" else pytest.mark.matrix)
    for way, stages in WAYS.items()
    for stage in stages
]
ALONE = [pytest.param(stage, marks=pytest.mark.matrix) for stage in WAYS["judged answers"]]
TOLERANCES = {"ranked": 1e-6, "steps": 1e-6, "adapted": 1e-6, "bfloat16": 3e-2}
"""That of weights, by what is trained. In bfloat16, stages 1 to 3 compute with a bfloat16 head, and rounding sends
elements whose gradient is almost 0 another way: AdamW moves each by up to 1e-2 an update, of which there are three."""


@pytest.fixture(scope="session")
def found(run_ranks, read_ranks, tmp_path_factory):
    """What the ranks of a way found at a stage in a scenario; their files are in ``folder``."""
    done = {}

    def read(way, stage, scenario):
        if way not in done:
            done[way] = run_ranks(way, tmp_path_factory.mktemp("judged"))
        ranks = read_ranks(done[way], stage, scenario)
        for rank in ranks:
            rank.folder = done[way] / f"stage{stage}" / scenario
        return ranks

    return read


@pytest.fixture(scope="session")
def alone(models, scenarios, rewarding, tmp_path_factory):
    """What one rank of the torch backend finds in a scenario; its files are in ``folder``."""
    done = {}

    def make(**options):
        return TorchBackend(TorchBackendConfig(device="cpu", **options))

    def run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp("judged_alone")
            place = scenarios.Place(make, models, folder)
            done[name] = scenarios.run(getattr(rewarding, name), place)
            done[name].folder = folder
        return done[name]

    return run


def assert_same_folder(ranks, alone, name):
    """The exported folders hold the same classifier, which Transformers loads."""
    folders = [which.folder / name for which in (ranks[0], alone)]
    weights, wanted = (load_file(folder / "model.safetensors") for folder in folders)
    assert weights.keys() == wanted.keys()
    assert weights["score.weight"].dtype == torch.float32
    torch.testing.assert_close(weights, wanted, atol=TOLERANCES[name], rtol=0.0)
    config, expected = (json.loads((folder / "config.json").read_text()) for folder in folders)
    assert config == expected
    files = [{path.name for path in folder.iterdir()} for folder in folders]
    assert files[0] == files[1]
    _, info = AutoModelForSequenceClassification.from_pretrained(
        folders[0], output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


@pytest.mark.parametrize(("way", "stage"), CASES)
def test_three_updates_are_those_of_one_rank(found, alone, way, stage, assert_same_metrics):
    ranks, expected = found(way, stage, "rewarding"), alone("rewarding")

    assert_same_metrics(ranks, expected, more_passes=True)
    for name in ("ranked", "steps"):
        assert_same_folder(ranks, expected, name)


@pytest.mark.parametrize("scores", ["scores", "seen"], ids=["of its answers", "of the update"])
@pytest.mark.parametrize(("way", "stage"), CASES)
def test_each_rank_gets_the_scores(found, alone, way, stage, scores, assert_same_rows):
    ranks, expected = found(way, stage, "rewarding"), alone("rewarding")

    for name in ("ranked", "steps"):
        for seed in range(3):
            # The more updates of rounding lie before it.
            assert_same_rows(ranks, expected, f"{scores}/{name}/{seed}", atol=2e-5)


@pytest.mark.parametrize("stage", ALONE)
def test_an_adapter_is_merged_into_the_classifier_and_kept_beside_it(found, alone, stage):
    ranks, expected = (
        found("judged answers", stage, "rewarding_otherwise"),
        alone("rewarding_otherwise"),
    )

    assert_same_folder(ranks, expected, "adapted")
    kept = "adapter/adapter_model.safetensors"
    factors, wanted = (load_file(which.folder / "adapted" / kept) for which in (ranks[0], expected))
    torch.testing.assert_close(factors, wanted, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("stage", ALONE)
def test_a_model_in_bfloat16_is_exported_with_its_head_in_float32(found, alone, stage):
    ranks, expected = (
        found("judged answers", stage, "rewarding_otherwise"),
        alone("rewarding_otherwise"),
    )

    assert_same_folder(ranks, expected, "bfloat16")


def test_the_pairs_are_in_several_micro_batches(alone):
    """Otherwise no pair could have been torn apart."""
    steps = alone("rewarding").facts["metrics"]

    assert min(step["train/micro_batches"][0] for step in steps[:2]) > 1
