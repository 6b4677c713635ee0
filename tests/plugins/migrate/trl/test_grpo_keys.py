"""The table for GRPO against the fields that TRL's script reads."""

import tomllib
from pathlib import Path

import pytest

from rlhf_plugin_migrate.table.entries import Rule, To
from rlhf_plugin_migrate.table.kinds import NUMBER, SWITCH, TEXT, WHOLE
from rlhf_plugin_migrate.trl.grpo import migrate, read
from rlhf_plugin_migrate.trl.grpo_keys import KEYS

FIELDS = tomllib.loads((Path(__file__).parent / "trl_grpo_keys.toml").read_text())
VALUES = {SWITCH: "true", WHOLE: "4", NUMBER: "0.5", TEXT: "text"}
BASES = {
    "plain": "",
    "vllm": "use_vllm: true\nbeta: 0.04\nvllm_mode: server",
    "sequences": "importance_sampling_level: sequence\nloss_type: grpo\nuse_vllm: true",
    "cispo": "loss_type: cispo\neval_strategy: steps\ndataset_name: a",
    "vespo": "loss_type: vespo\nuse_adaptive_entropy: true\nmax_steps: 8",
}


@pytest.mark.parametrize("group", FIELDS)
def test_every_field_has_an_entry(group):
    assert sorted(set(FIELDS[group]) - KEYS.keys()) == []


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_every_key_gets_a_row_in_any_company_and_sets_no_undeclared_option(base):
    for entry in KEYS.values():
        if f"{entry.name}:" in base:
            continue
        value = VALUES.get(entry.kind, entry.kind.name.removeprefix("one of ").partition(",")[0])
        text = f"{base}\n{entry.name}: {value}"
        out = migrate(read(text, "x.yaml"), 2, "r.py")
        rows = list(out.rows())

        assert len(rows) == len(text.split("\n")) - text.split("\n").count(""), entry.name
        assert rows[-1].text, entry.name
        if isinstance(entry.fate, Rule):
            set_by_it = {
                path for path, found in out.settings.items() if entry.name in found.sources
            }
            extra = {path for path in set_by_it if not path.startswith("runtime.ray.ranks")}
            assert extra <= set(entry.fate.options), entry.name
        elif isinstance(entry.fate, To):
            assert entry.fate.option in out.settings, entry.name
