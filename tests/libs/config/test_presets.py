import sys
from importlib.metadata import EntryPoint

import pytest
from tests.core import sample_plugin

from rlhf_config import Layer, Origin, leaves, parse_flags, read_toml, resolve, write_toml
from rlhf_core import ConfigError, PluginError, UnknownComponent
from rlhf_core.contracts import preset_component
from rlhf_core.plugins import GROUP, Candidate, empty, register
from rlhf_testing.errors import has_code

METHOD = """
[rollout]
n_samples_per_prompt = 16  # section 4

[algo.advantage]
estimator = "discounted"  # equation 2

[algo.advantage.discounted]
gamma = 0.25  # table 1
"""


NAMES = ("method", "other", "broken", "nested", "gone")


def defaults():
    origins = {path: Origin(path, is_default=True) for path, _ in leaves(sample_plugin.DEFAULTS)}
    return Layer(sample_plugin.DEFAULTS, origins)


@pytest.fixture
def resolved(tmp_path, monkeypatch):
    """Resolve a run of the sample plugin, which has presets here."""
    (tmp_path / "method.toml").write_text(METHOD)
    (tmp_path / "other.toml").write_text("[rollout]\nn_samples_per_prompt = 3  # section 1\n")
    (tmp_path / "broken.toml").write_text("[rollout\n")
    (tmp_path / "nested.toml").write_text('preset = "method"\n')
    presets = [preset_component(tmp_path / f"{name}.toml", "a method") for name in NAMES]
    monkeypatch.setitem(sample_plugin.COMPONENTS, "rlhf_presets", presets)
    monkeypatch.setitem(sys.modules, "sample_plugin", sample_plugin.module())
    plugins = empty()
    register(plugins, Candidate("sample", EntryPoint("sample", "sample_plugin", GROUP), None))

    def run(*words, files=()):
        return resolve([defaults(), *files, parse_flags([*sample_plugin.ENOUGH, *words])], plugins)

    return run


def samples(resolved, *words, **more):
    return resolved(*words, **more).run.rollout.n_samples_per_prompt


def test_a_preset_is_above_the_defaults(resolved):
    result = resolved("--preset", "method")

    assert result.run.rollout.n_samples_per_prompt == 16
    assert result.one("algo.advantage.estimator").registered.name == "discounted"
    assert result.one("algo.advantage.estimator").options.gamma == 0.25
    assert result.run.preset == "method"


def test_files_and_flags_are_above_a_preset(resolved):
    file = Layer.of({"rollout": {"n_samples_per_prompt": 5}}, "a.toml")

    assert samples(resolved, "--preset", "method", files=[file]) == 5
    flag = ("--rollout.n_samples_per_prompt", "6")
    assert samples(resolved, "--preset", "method", *flag, files=[file]) == 6


def test_the_last_preset_is_the_one(resolved):
    file = Layer.of({"preset": "method"}, "a.toml")

    assert samples(resolved, files=[file]) == 16
    assert samples(resolved, "--preset", "other", files=[file]) == 3
    assert samples(resolved, "--preset", "none", files=[file]) == samples(resolved)


def test_a_recorded_run_is_the_same_again(resolved, tmp_path):
    first = resolved("--preset", "method", "--rollout.n_samples_per_prompt", "2")
    write_toml(first, tmp_path / "config.toml")

    again = resolved(files=[read_toml(tmp_path / "config.toml")])

    assert again.tree == first.tree


def test_a_wrong_value_names_the_preset(resolved, tmp_path):
    (tmp_path / "other.toml").write_text("[rollout]\nn_samples_per_prompt = 0  # section 1\n")

    with pytest.raises(
        ConfigError,
        match=r"preset sample:other: rollout\.n_samples_per_prompt",
        check=has_code("config/out-of-range"),
    ):
        resolved("--preset", "other")


def test_an_unknown_preset_names_those_that_there_are(resolved):
    with pytest.raises(
        UnknownComponent, match=r"--preset.*'method'\?", check=has_code("plugin/unknown-component")
    ):
        resolved("--preset", "metod")


@pytest.mark.parametrize(
    ("name", "reason", "code"),
    [
        ("broken", "expected TOML in", "plugin/malformed-preset"),
        ("gone", "expected TOML in", "plugin/malformed-preset"),
        ("nested", "names a preset", "plugin/preset-in-preset"),
    ],
)
def test_a_file_that_is_no_preset_is_refused(resolved, name, reason, code):
    with pytest.raises(
        PluginError, match=f"preset sample:{name}: .*{reason}", check=has_code(code)
    ):
        resolved("--preset", name)
