"""Names of other frameworks lead to options that some command has."""

from fnmatch import fnmatchcase

import pytest

from rlhf_cli.runs import training_command
from rlhf_config.names_elsewhere import PATHS, paths_here
from rlhf_config.sections import options_of
from rlhf_core.plugins import load


@pytest.fixture(scope="module")
def options():
    """Options of the commands that most people begin with, those of components included."""
    plugins = load("")
    found = set()
    for command in ("train", "sft", "dpo"):
        tree = training_command(command, plugins).options
        found |= set(options_of(tree.model))
        for slot in tree.selectors:
            for entry in plugins.registries[slot.hook]:
                own = entry.component.config.model_fields
                found |= {f"{slot.section}.{entry.name}.{name}" for name in own}
    return sorted(found)


@pytest.mark.parametrize("name", PATHS)
def test_every_path_is_an_option_and_no_name_is_one(options, name):
    assert all(any(fnmatchcase(path, pattern) for path in options) for pattern in PATHS[name])
    assert name not in options


def test_a_name_is_answered_by_what_the_command_has():
    assert paths_here("beta", ["algo.kl.coef", "preference.dpo.beta"]) == ["algo.kl.coef"]
    assert paths_here("beta", ["preference.dpo.beta"]) == ["preference.dpo.beta"]
    assert paths_here("beta", ["model.path"]) == []
    assert paths_here("num_generationz", ["rollout.n_samples_per_prompt"]) == []
