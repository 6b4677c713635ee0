"""The backend with the real optimizer and the real policy loss, found as a run finds them."""

import pytest

from rlhf_core.contracts import ComponentRef, PolicyObjective
from rlhf_core.plugins import load
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend


@pytest.fixture(scope="module")
def installed():
    return load("")


@pytest.fixture
def start_installed(installed, make_spec, models):
    spec = make_spec(
        models["qwen3"],
        objective=PolicyObjective(
            loss=ComponentRef(kind="rlhf_policy_losses", name="algorithms:ppo"),
            aggregation="token-mean",
        ),
        optimizer=ComponentRef(
            kind="rlhf_optimizers",
            name="algorithms:adam",
            options={"lr": 1e-3, "weight_decay": 0.1},
        ),
    )

    def build():
        backend = TorchBackend(TorchBackendConfig(device="cpu"))
        backend.setup(spec, installed)
        return backend

    return build


def test_ppo_with_adam_raises_good_actions_and_lowers_bad_ones(
    start_installed, make_batch, make_plan
):
    backend, batch = start_installed(), make_batch()
    before = backend.logprobs(batch.trajectories)

    for _ in range(5):
        backend.train_step(batch, make_plan(batch))

    moved = backend.logprobs(batch.trajectories) - before
    assert float((moved * batch.columns["advantages"]).mean()) > 0.01


def test_a_restored_run_with_adam_goes_on_to_the_bit(
    start_installed, make_batch, make_plan, tmp_path
):
    straight = start_installed()
    batch = make_batch()
    for _ in range(2):
        straight.train_step(batch, make_plan(batch))
    straight.save(tmp_path)
    resumed = start_installed()
    resumed.load(tmp_path)

    for backend in (straight, resumed):
        backend.train_step(batch, make_plan(batch))

    assert resumed.checksum() == straight.checksum()
