"""The examples and tables of docs/migrating.md are what the command makes of them."""

import re
from pathlib import Path

import pytest

from rlhf_cli.runs import training_command
from rlhf_config.sections import options_of
from rlhf_core.plugins import load
from rlhf_plugin_migrate.prime_rl.programs import TABLES as PRIME_RL
from rlhf_plugin_migrate.skyrl.programs import TABLES as SKYRL

PAGE = Path(__file__).parents[3] / "docs/migrating.md"
TABLES = {"SkyRL": SKYRL["main_base"], "prime-rl": PRIME_RL["rl"]}
_CODE = re.compile(r"`([^`]+)`")
_PATH = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")


def test_the_example_of_the_page_is_up_to_date(run, workspace, tmp_path):
    text = PAGE.read_text()
    (script,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (expected,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.sh").write_text(script)

    assert run("train.sh").code == 0

    written = (tmp_path / "run.toml").read_text()
    configuration = written.partition("\n\n")[2].partition("\n\n\n#")[0]
    assert configuration.strip() == expected.strip()


def rows_of(framework):
    """Rows of a framework's table, each as what is on its two sides in code."""
    table = PAGE.read_text().partition(f"| {framework} | here |\n| --- | --- |\n")[2]
    lines = table.partition("\n\n")[0].splitlines()
    return [[_CODE.findall(side) for side in line.strip("|").split(" | ")] for line in lines]


@pytest.fixture(scope="module")
def options():
    plugins = load("")
    tree = training_command("train", plugins).options
    found = set(options_of(tree.model))
    for slot in tree.selectors:
        for entry in plugins.registries[slot.hook]:
            found |= set(options_of(entry.component.config, f"{slot.section}.{entry.name}"))
    return found


@pytest.mark.parametrize("framework", TABLES)
def test_every_row_names_keys_and_options_that_there_are(framework, options):
    rows = rows_of(framework)

    assert len(rows) > 12
    for theirs, ours in rows:
        assert theirs
        assert [key for key in theirs if TABLES[framework].find(key) is None] == []
        paths = [text.partition(" = ")[0] for text in ours]
        known = [path for path in paths if _PATH.fullmatch(path) or path == "output"]
        assert known, theirs
        assert [path for path in known if path not in options] == []
