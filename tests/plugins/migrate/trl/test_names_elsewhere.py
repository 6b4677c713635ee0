"""The names of TRL's options that errors know lead where this command leads, too."""

from fnmatch import fnmatchcase

import pytest

from rlhf_config.names_elsewhere import PATHS
from rlhf_plugin_migrate.table.entries import Rule, To
from rlhf_plugin_migrate.trl.scripts import SCRIPTS


def options_of(name):
    """Options that the tables of all scripts have for a key."""
    fates = [script.keys[name].fate for script in SCRIPTS.values() if name in script.keys]
    of_rules = {path for fate in fates if isinstance(fate, Rule) for path in fate.options}
    return of_rules | {fate.option for fate in fates if isinstance(fate, To)}


@pytest.mark.parametrize("name", [name for name in PATHS if options_of(name)])
def test_an_error_and_the_migration_name_one_option(name):
    found = options_of(name)

    assert any(fnmatchcase(path, pattern) for path in found for pattern in PATHS[name]), found
