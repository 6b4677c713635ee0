"""Optimizers in the torch backend: its schedule, its state by parameter name, its files."""

import logging
from types import SimpleNamespace

import pytest
import torch

from rlhf_core.contracts import RoleSpec
from rlhf_plugin_algorithms.optimizers import AdamConfig, MuonConfig, SgdConfig
from rlhf_plugin_algorithms.optimizers.adam import Adam
from rlhf_plugin_algorithms.optimizers.muon import Muon
from rlhf_plugin_algorithms.optimizers.sgd import Sgd
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.training.host_memory import HostMemory
from rlhf_torch.training.state_files import load_state, save_state
from rlhf_torch.training.undo import Undo
from rlhf_torch.training.updater import Updater

OPTIMIZERS = {
    "adam": lambda: Adam(AdamConfig(lr=0.01)),
    "muon": lambda: Muon(MuonConfig(lr=0.01, weight_decay=0.1)),
    "sgd": lambda: Sgd(SgdConfig(lr=0.01, momentum=0.9)),
    "sgd without state": lambda: Sgd(SgdConfig(lr=0.01)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def start(folder):
    """A tiny model in bfloat16 and an updater with float32 copies of its weights."""
    from transformers import AutoModelForCausalLM

    def build(name):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        spec = RoleSpec(role="policy", model_path=str(folder), ema_decay=0.9)
        updater = Updater(list(model.named_parameters()), spec, OPTIMIZERS[name]())
        return SimpleNamespace(model=model, updater=updater, state=model.state_dict)

    return build


def update(role, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in role.model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    role.updater.collect()
    return role.updater.update()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_restored_from_files_goes_on_to_the_bit(start, tmp_path, name):
    straight = start(name)
    for seed in range(3):
        update(straight, seed)
    save_state(tmp_path, straight, straight.updater)
    resumed = start(name)
    load_state(tmp_path, resumed, resumed.updater)

    for role in (straight, resumed):
        update(role, 3)

    for key, master in straight.updater.masters.items():
        assert torch.equal(master, resumed.updater.masters[key]), key
    for key, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[key]), key


ENOUGH = 2**30


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_role_goes_back_to_what_it_kept_to_the_bit(start, tmp_path, name, before):
    """Also to where the optimizer has no state yet; its files are those of a role that has had no further updates."""
    straight, undone = start(name), start(name)
    for role in (straight, undone):
        for seed in range(before):
            update(role, seed)
    undo = Undo("policy", undone.model, undone.updater)
    for _ in range(2):  # the second copy is written over the first
        undo.keep(before, ENOUGH)
        for seed in (7, 8):
            update(undone, seed)
        assert undo.restore(before)

    for role, folder in ((straight, "straight"), (undone, "undone")):
        save_state(tmp_path / folder, role, role.updater)
        update(role, 3)
        save_state(tmp_path / f"{folder}-later", role, role.updater)
    for folder in ("", "-later"):
        for file in (tmp_path / f"straight{folder}").iterdir():
            other = tmp_path / f"undone{folder}" / file.name
            assert file.read_bytes() == other.read_bytes(), file


def test_a_role_changes_nothing_where_that_state_was_not_kept(start, caplog):
    caplog.set_level(logging.INFO)
    role = start("adam")
    undo = Undo("policy", role.model, role.updater)
    num_weights = sum(weight.numel() for weight in role.model.parameters())
    # bfloat16 weights with float32 copies and averages; buffers come on top.
    undo.keep(0, 10 * num_weights - 1)
    update(role, 0)
    changed = {key: master.clone() for key, master in role.updater.masters.items()}

    assert not undo.restore(0)
    undo.keep(1, 10 * num_weights - 1)
    said = [text for text in caplog.messages if "checkpoint.undo_gib" in text]
    assert len(said) == 1
    assert said[0].startswith("the policy is not copied before a step: it has ")
    undo.keep(1, ENOUGH)
    assert not undo.restore(0)
    assert all(torch.equal(changed[key], now) for key, now in role.updater.masters.items())


@pytest.mark.parametrize(("of_other_rank", "kept"), [(ENOUGH, True), (ENOUGH + 1, False)])
def test_ranks_keep_their_state_together_or_not_at_all(start, of_other_rank, kept):
    role = start("adam")
    undo = Undo("policy", role.model, role.updater, lambda size: max(size, of_other_rank))
    undo.keep(0, ENOUGH)

    assert undo.restore(0) == kept


def test_state_is_offloaded_and_comes_back(start):
    moved, stayed = start("muon"), start("muon")
    for role in (moved, stayed):
        update(role, 0)
    memory = HostMemory(torch.device("cpu"))
    memory.take(moved.updater.state())
    assert {tensor.untyped_storage().nbytes() for tensor in moved.updater.state()} == {0}
    memory.give_back()

    for role in (moved, stayed):
        update(role, 1)

    for key, master in moved.updater.masters.items():
        assert torch.equal(master, stayed.updater.masters[key]), key


def test_groups_of_a_real_architecture(start):
    groups = start("muon").updater.optimizer.param_groups

    assert [(group["name"], len(group["params"])) for group in groups] == [
        ("muon", 2 * 7),  # q, k, v, o, gate, up and down projection of two layers
        ("adam_decay", 1),  # the embedding, which is the head too
        ("adam_no_decay", 2 * 4 + 1),  # four norms of each layer, and the last one
    ]
