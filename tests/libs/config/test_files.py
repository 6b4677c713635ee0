"""Configuration files: what is read, and what a run leaves to be repeated."""

import tomllib

import pytest

from rlhf_config import read_toml, resolve, write_toml
from rlhf_config.files import writable
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


def test_a_file_names_itself_in_its_origins(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\nsteps = 3\n")

    layer = read_toml(path)

    assert layer.values == {"train": {"steps": 3}}
    assert layer.origins["train.steps"].label == f"{path}: train.steps"
    assert not layer.origins["train.steps"].typed


@pytest.mark.parametrize(
    ("content", "part", "code"),
    [
        (b"[train\nsteps = 3", "not valid TOML.*line 1", "config/not-toml"),
        (b"a = " + 100_000 * b"[", "tables at most 32 deep", "config/too-deep"),
        (b"a" + 40 * b".a" + b" = 1", "tables at most 32 deep", "config/too-deep"),
        (b"a = " + 40 * b"[" + 40 * b"]", "tables at most 32 deep", "config/too-deep"),
        (b"a = 1\na = 2", "not valid TOML", "config/not-toml"),
        (b"\xff\xfe", "UTF-8", "config/not-utf8"),
        (None, "cannot read it", "config/unreadable-file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, part, code):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=part, check=has_code(code)) as caught:
        read_toml(path)

    assert f"-c {path}" in str(caught.value)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(
        ConfigError, match="cannot read it", check=has_code("config/unreadable-file")
    ):
        read_toml(tmp_path)


def test_options_of_a_file_that_no_user_has_seen_are_named_as_flags(tmp_path):
    path = tmp_path / "defaults.toml"
    path.write_text("[train]\nsteps = 3\n[rollout]\nbatch_size = 2\n")

    origins = read_toml(path, defaults=True).origins

    assert origins["train.steps"].label == "--steps (default)"
    assert origins["rollout.batch_size"].label == "--rollout.batch_size (default)"


def test_a_recorded_configuration_starts_with_the_versions(resolved, tmp_path):
    write_toml(resolved(), tmp_path / "config.toml")

    text = (tmp_path / "config.toml").read_text()

    assert text.startswith("# A run's whole configuration, by rlhf-core ")
    assert "rlhf train -c" in text


def test_how_a_run_was_started_is_no_part_of_what_is_repeated(resolved, tmp_path):
    write_toml(resolved("--resume", "auto"), tmp_path / "config.toml")

    assert "resume" not in tomllib.loads((tmp_path / "config.toml").read_text())


def test_a_function_of_the_users_is_recorded_with_its_files_hash(resolved, plugins, tmp_path):
    (tmp_path / "mine.py").write_text("def score(response, row):\n    return 0.0\n")
    reference = f"{tmp_path / 'mine.py'}:score"

    write_toml(resolved("--reward", reference), tmp_path / "config.toml")

    text = (tmp_path / "config.toml").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"#   {reference}: ")]
    assert "sha256" in line
    again = resolve([read_toml(tmp_path / "config.toml")], plugins)
    assert again.tree["reward"]["use"] == ["sample:pattern", reference]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "none"),
        ((1, None), [1, "none"]),
        ({"a": {"b": None}, 3: ()}, {"a": {"b": "none"}, "3": []}),
        ("none", "none"),
        (0, 0),
        (False, False),
    ],
)
def test_what_toml_has_no_word_for_gets_the_options_own(value, expected):
    assert writable(value) == expected
