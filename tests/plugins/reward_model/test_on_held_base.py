"""A reward model that is an adapter of the base that the policy's adapter stands on."""

import json
from dataclasses import replace

import pytest
from tests.plugins.lora.conftest import models, plugins, spec_of, stir  # noqa: F401 (fixtures)
from tests.plugins.reward_model.conftest import request_of, write_adapter

from rlhf_core import ConfigError, RewardError
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_plugin_reward_model.config import RewardModelConfig
from rlhf_plugin_reward_model.loading import load_model
from rlhf_plugin_reward_model.on_held_base import ScorerOnHeldBase
from rlhf_plugin_reward_model.reward import TextReader, make_reward
from rlhf_plugin_reward_model.scoring import Scorer
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

SAMPLES = [request_of("2+2=", "4"), request_of("12+31=", "043", 1), request_of("9-9=", "", 2)]


@pytest.fixture
def base(tmp_path):
    return write_tiny_model(tmp_path / "base", "qwen3", initializer_range=0.2)


@pytest.fixture
def folder(base, tmp_path):
    return write_adapter(base, tmp_path / "adapter", seed=1)


@pytest.fixture
def policy(plugins, spec_of, base):  # noqa: F811
    """Start a policy under an adapter, and under its base's name."""
    started = []

    def start(adapter="lora", **changes):
        backend = TorchBackend(TorchBackendConfig(device="cpu"))
        backend.setup_beside(
            replace(spec_of(adapter, **changes), model_path=str(base)), plugins, ()
        )
        stir(backend)
        started.append(backend)
        return backend

    yield start
    for backend in started:
        backend.close()


def options_of(folder, **options):
    return RewardModelConfig(path=str(folder), device="cpu", **options)


def shared(folder, **options):
    return RewardModelConfig(path=str(folder), base="shared", **options)


def sequences():
    return [list(sample.token_ids) for sample in SAMPLES]


@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_scores_are_those_of_a_base_of_its_own(policy, folder, adapter):
    backend = policy(adapter)

    found = ScorerOnHeldBase(shared(folder)).scores(sequences())

    expected = Scorer(options_of(folder)).scores(sequences())
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 3) for score in expected}) == len(expected)
    del backend


def test_the_score_is_read_at_the_same_token_as_with_a_base_of_its_own(policy, base, tmp_path):
    """The padding token ends the sequences too, so the rules name different tokens."""
    path = base / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": 2}))
    folder = write_adapter(base, tmp_path / "adapter", seed=1)
    backend = policy()

    found = {
        rule: ScorerOnHeldBase(shared(folder, score_at=rule)).scores(sequences())
        for rule in ("last", "last_not_pad")
    }

    assert found["last"] != pytest.approx(found["last_not_pad"], abs=1e-3)
    for rule, scores in found.items():
        expected = Scorer(options_of(folder, score_at=rule)).scores(sequences())
        assert scores == pytest.approx(expected, abs=1e-5)
    del backend


def test_the_base_is_in_memory_once(policy, folder):
    backend = policy()
    scorer = ScorerOnHeldBase(shared(folder))
    scorer.scores(sequences())

    held = {weight.data_ptr() for weight in backend.module().parameters()}
    model = scorer._scorer.loaded.model
    added = {
        name: weight for name, weight in model.named_parameters() if weight.data_ptr() not in held
    }
    assert all("lora_" in name or name.startswith("score.") for name in added)
    own = load_model(options_of(folder)).model
    assert sum(w.nbytes for w in added.values()) < sum(w.nbytes for w in own.parameters()) / 4


def test_neither_adapter_reaches_the_other(policy, folder, base, tmp_path):
    from tests.plugins.torch.conftest import make_trajectories

    backend = policy()
    before = backend.logprobs(make_trajectories())
    scorer = ScorerOnHeldBase(shared(folder))
    first = scorer.scores(sequences())
    other = ScorerOnHeldBase(shared(write_adapter(base, tmp_path / "other", seed=2)))
    others = other.scores(sequences())

    stir(backend)

    assert scorer.scores(sequences()) == first
    assert other.scores(sequences()) == others != first
    stirred = backend.logprobs(make_trajectories())
    assert any((left != right).any() for left, right in zip(before, stirred, strict=True))


def test_without_a_role_on_this_base_the_error_says_what_to_do(policy, folder):
    scorer = ScorerOnHeldBase(shared(folder))
    with pytest.raises(
        ConfigError, match=r"--actor\.adapter", check=has_code("reward-model/no-shared-base")
    ):
        scorer.scores(sequences())
    policy(None)  # trained whole: its weights are no reward model's base
    with pytest.raises(ConfigError, check=has_code("reward-model/no-shared-base")):
        scorer.scores(sequences())


def test_a_whole_model_has_no_base_to_share(base):
    with pytest.raises(ConfigError, check=has_code("reward-model/not-an-adapter")):
        make_reward(shared(base))


def test_a_base_that_has_left_the_gpu_is_named(policy, folder, monkeypatch):
    policy()
    scorer = ScorerOnHeldBase(shared(folder))
    scorer.scores(sequences())
    monkeypatch.setattr(Scorer, "is_in_place", lambda self: False)
    with pytest.raises(RewardError, match=r"runtime\.sleep", check=has_code("reward-model/asleep")):
        scorer.scores(sequences())


@pytest.mark.parametrize(
    "options", [{"dtype": "bfloat16"}, {"device": "cpu"}, {"vision": "vlm", "input": "chat"}]
)
def test_options_without_effect_beside_a_shared_base_are_refused(folder, options):
    with pytest.raises(ValueError, match="base = shared"):
        shared(folder, **options)


def test_tokens_end_where_the_adapter_learned_its_scores(base, tmp_path):
    """The base names another end; what the adapter's own config.json says is read before there is a model."""
    folder = write_adapter(base, tmp_path / "adapter", seed=1)
    config = json.loads((base / "config.json").read_text()) | {"score_token_ids": [9]}
    (folder / "config.json").write_text(json.dumps(config))
    sample = request_of("2+2=", "4")

    read = TextReader(shared(folder)).read(sample)

    assert list(read) == [*sample.token_ids[:-1], 9]
    assert Scorer(options_of(folder)).end.ended(sample.token_ids) == read
