"""``rlhf train`` as a kind of run: which roles are saved, what is exported, and books that do not balance."""

from types import SimpleNamespace

import pytest

from rlhf_config.common import ActorConfig
from rlhf_config.layers import lookup
from rlhf_core import CheckpointError
from rlhf_core.storage.run_folder import RunFolder
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import Extent
from rlhf_trainer.loop.rl_trainer import RLTrainer
from rlhf_trainer.loop.state import LoopState
from rlhf_trainer.loop.training import BINDING, check_books


@pytest.fixture
def trainer(tmp_path):
    def of(*roles, ema=None):
        run = SimpleNamespace(actor=ActorConfig(optim="any", ema=ema))
        named = {name: name for name in roles}
        session = SimpleNamespace(
            resolved=SimpleNamespace(run=run),
            roles=named,
            total_steps=7,
            sleeping=None,
        )
        return RLTrainer(session, LoopState(), RunFolder(tmp_path))

    return of


def test_models_that_never_change_are_not_saved(trainer):
    """They are what the options say now, not what the options said when the checkpoint was made."""
    every = trainer("policy", "critic", "reference", "teacher")

    assert list(every.saved_roles.values()) == ["policy", "critic"]
    assert every.total_steps == 7


def test_the_policy_is_exported_and_its_average_where_there_is_one(trainer, tmp_path):
    plain, averaged = trainer("policy", "critic"), trainer("policy", ema=0.9)

    assert [(one.role, one.folder, one.ema) for one in plain.exports] == [
        ("policy", tmp_path / "model", False)
    ]
    assert [(one.folder, one.ema) for one in averaged.exports] == [
        (tmp_path / "model", False),
        (tmp_path / "model_ema", True),
    ]


def test_books_that_do_not_balance_name_the_group(small_run):
    small_run({"checkpoint": {"every": 1}})
    folder = RunFolder(small_run.folder / "run")
    size = Extent(num_bytes=folder.ledger.stat().st_size, sha256="")

    check_books(folder, LoopState(step=3), {"ledger.jsonl": size})
    with pytest.raises(
        CheckpointError,
        match=r"at step 3: group 0\.99, which should be in flight",
        check=has_code("checkpoint/unbalanced-ledger"),
    ):
        check_books(folder, LoopState(step=3, in_flight=[(0, 99)]), {"ledger.jsonl": size})
    check_books(folder, LoopState(step=3, in_flight=[(0, 99)]), {})


def exists(tree, path):
    section, _, name = path.rpartition(".")
    return name in (lookup(tree, section) if section else tree)


def test_options_that_bind_exist(small_run):
    with small_run.configured() as (resolved, _):
        missing = [path for path in BINDING if not exists(resolved.tree, path)]

    assert missing == []
