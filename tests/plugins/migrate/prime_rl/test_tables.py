"""The tables against the keys of prime-rl's own configuration classes."""

import tomllib
from pathlib import Path

import pytest

from rlhf_plugin_migrate.prime_rl.programs import TABLES, migrate
from rlhf_plugin_migrate.table.kinds import NUMBER, SWITCH, WHOLE

THEIRS = tomllib.loads((Path(__file__).parent / "prime_rl_keys.toml").read_text())
SOURCE = {"name": "a", "env": {"taskset": {"id": "t", "size": 3}}}
SOURCES = ("orchestrator.train.source", "orchestrator.train.source", [SOURCE])


@pytest.mark.parametrize(("program", "number"), [("rl", 468), ("sft", 311)])
def test_every_key_of_prime_rl_has_an_entry(program, number):
    keys = THEIRS[program].split()

    assert len(keys) == number
    assert [key for key in keys if TABLES[program].find(key) is None] == []


@pytest.mark.parametrize(
    ("program", "others"),
    [
        ("rl", []),
        ("rl", [SOURCES]),
        ("rl", [SOURCES, ("x", "trainer.scheduler.type", "linear"), ("x", "max_steps", 100)]),
        ("rl", [("x", "orchestrator.algo.type", "opd"), ("x", "trainer.model.lora", {})]),
        ("rl", [("x", "deployment.num_train_nodes", 2), ("x", "deployment.num_infer_nodes", 1)]),
        ("sft", []),
        ("sft", [("x", "optim.type", "muon"), ("x", "val.data.name", "held/out")]),
    ],
)
def test_every_key_by_itself_has_a_line_in_the_report(program, others):
    values = {SWITCH: (True, False), WHOLE: (3, 1), NUMBER: (0.5, 0.0)}
    for key in [*TABLES[program].entries, *THEIRS[program].split()]:
        kind = TABLES[program].find(key).kind
        for value in (*values.get(kind, ("x", ["x"], {})), None):
            word = f"{key} = {value}"
            outcome = migrate([*others, (word, key, value)], program)

            assert [row for row in outcome.rows() if row.what == word], word


@pytest.mark.parametrize("key", ["model.nmae", "orchestrator.batchsize", "trainer.optim.rate"])
def test_a_key_that_prime_rl_has_not_is_named(key):
    (row,) = migrate([(f"{key} = 1", key, 1)], "rl").rows()

    assert "prime-rl has no such key" in row.text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None),
        ({"user": True}, ["assistant", "user"]),
        ({"assistant": False, "tool": True}, ["tool"]),
        ({"user": True, "tool": True, "system": True}, ["assistant", "user", "tool", "system"]),
        ({"assistant": False}, None),
    ],
)
def test_roles_that_are_learned_are_carried_over(given, expected):
    found = migrate(
        [("x", f"data.loss_mask.{role}", value) for role, value in given.items()], "sft"
    )

    setting = found.settings.get("data.roles")
    assert (setting.value if setting else None) == expected
