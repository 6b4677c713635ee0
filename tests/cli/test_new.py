"""Each kind of plugin is generated, installed, found and tested, as its author would do."""

import json
import os
import subprocess
import sys

import pytest

from rlhf_cli.new import KINDS, write_package

FAST = ("advantage_estimator", "reward")


@pytest.mark.parametrize(
    "kind",
    [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.matrix) for kind in KINDS],
)
def test_a_new_plugin_works_at_once(tmp_path, kind):
    work_at_once(tmp_path, {kind: "my-thing"})


@pytest.mark.slow
def test_new_plugins_of_the_other_kinds_work_at_once_beside_each_other(tmp_path):
    """Of what each alone takes, most is the start of pip, pytest and torch."""
    work_at_once(tmp_path, {kind: f"my-{kind}-thing" for kind in KINDS if kind not in FAST})


def work_at_once(tmp_path, names):
    """Write, install, test and list a package of each kind."""
    folders = {kind: write_package(name, kind, tmp_path) for kind, name in names.items()}
    target = tmp_path / "installed"
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
        "--disable-pip-version-check", "--target", target, *folders.values())  # fmt: skip
    environment = {"PYTHONPATH": str(target), "PYTEST_ADDOPTS": "-p no:cacheprovider"}

    # Of several packages pytest reads the settings of none.
    alike = ["--import-mode=importlib"] if len(folders) > 1 else []
    tested = run("-m", "pytest", "-q", *alike, *folders.values(), environment=environment)
    listed = run("-m", "rlhf_cli.main", "plugins", "--json", "--strict", environment=environment)

    assert " passed" in tested
    for kind, name in names.items():
        word = name.replace("-", "_")
        rows = [row for row in json.loads(listed) if row["plugin"] in (word, f"env_{word}")]
        assert [row["kind"] for row in rows] == [kind]
        assert rows[0]["status"] == "ok"
        assert rows[0]["component"] == word
        assert list(folders[kind].glob("tests/test_*.py")), kind


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_complete(tmp_path, kind):
    folder = write_package("my-thing", kind, tmp_path)

    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    module = "rlhf_env_my_thing" if kind == "environment" else "rlhf_plugin_my_thing"
    assert {
        "pyproject.toml",
        "README.md",
        ".github/workflows/test.yml",
        f"src/{module}/__init__.py",
        "tests/test_my_thing.py",
    } <= set(files)
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not [text for text in texts if "$" in text]
    for path in folder.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


def test_the_command_says_what_to_do_next(rlhf, tmp_path):
    code, out, _ = rlhf("new", "plugin", "my-loss", "--kind", "policy-loss", "--output", tmp_path)

    assert code == 0
    assert (tmp_path / "rlhf-plugin-my-loss" / "pyproject.toml").exists()
    assert f"pip install -e {tmp_path / 'rlhf-plugin-my-loss'}" in out


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("advantage_estimator", "rlhf train -c run.toml --estimator my_thing"),
        ("model_adapter", "rlhf train -c run.toml --actor.adapter my_thing"),
        ("logger", "rlhf train -c run.toml --log.to my_thing"),
        ("preference_loss", "rlhf plugins show my_thing"),
        ("command", "rlhf my-thing --help"),
        ("observer", "rlhf train -c run.toml --observers.use my_thing"),
        ("kl_estimator", "rlhf train -c run.toml --algo.kl.estimator my_thing --algo.kl.coef 0.01"),
    ],
)
def test_the_line_that_uses_a_component_is_printed_and_in_its_readme(rlhf, tmp_path, kind, line):
    code, out, _ = rlhf("new", "plugin", "my-thing", "--kind", kind, "--output", tmp_path)

    assert code == 0
    assert out.splitlines()[-1].strip() == line
    readme = (tmp_path / "rlhf-plugin-my-thing" / "README.md").read_text()
    assert f"    {line}\n" in readme


def test_an_environment_is_used_with_an_executor_that_plays_it(rlhf, tmp_path):
    """The default executor plays none, and turns share a length, so a run without the options is refused."""
    _, out, _ = rlhf("new", "plugin", "maze", "--kind", "environment", "--output", tmp_path)

    line = out.splitlines()[-1].strip()
    expected = "--env maze --executor multi_turn --rollout.max_length 2048"
    assert line == f"rlhf train -c run.toml {expected}"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("correction", "is_correction"),
        ("executor", "rollout_executor"),
        ("filter", "sample_filter"),
    ],
)
def test_the_last_word_of_a_kind_will_do(rlhf, tmp_path, word, kind):
    code, out, _ = rlhf("new", "plugin", "mine", "--kind", word, "--output", tmp_path)

    assert code == 0
    assert f"a plugin with a working {kind}" in out


@pytest.mark.parametrize(
    ("word", "kinds"),
    [
        ("loss", "policy_loss, preference_loss"),
        ("estimator", "advantage_estimator, kl_estimator"),
    ],
)
def test_a_last_word_of_two_kinds_names_both(rlhf, tmp_path, word, kinds):
    code, _, err = rlhf("new", "plugin", "mine", "--kind", word, "--output", tmp_path)

    assert code == 2
    assert f"--kind {word}: expected one of {kinds}" in err


def test_a_new_environment_says_how_to_play_and_check_it(rlhf, tmp_path):
    code, out, _ = rlhf("new", "environment", "my-game", "--output", tmp_path)

    assert code == 0
    assert (tmp_path / "rlhf-env-my-game" / "eval.toml").exists()
    assert "rlhf env try my_game" in out
    assert "rlhf env check my_game" in out
    assert f"rlhf train -c {tmp_path / 'rlhf-env-my-game' / 'eval.toml'} --model MODEL" in out


@pytest.mark.parametrize(
    ("name", "distribution"),
    [
        ("mine", "rlhf-plugin-mine"),
        ("rlhf-plugin-mine", "rlhf-plugin-mine"),
        ("my_own", "rlhf-plugin-my-own"),
    ],
)
def test_names_become_distributions(tmp_path, name, distribution):
    assert write_package(name, "reward", tmp_path).name == distribution


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["mine", "--kind", "nope"], "--kind nope: expected one of"),
        (["My Thing", "--kind", "reward"], "expected lower case words"),
        (["1st", "--kind", "reward"], "expected lower case words"),
        (["mine", "--kind", "reward", "--output", "file"], "cannot write"),
    ],
)
def test_what_cannot_be_made_is_refused(rlhf, tmp_path, monkeypatch, words, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    code, _, err = rlhf("new", "plugin", *words)

    assert code == 2
    assert part in err


@pytest.mark.parametrize(
    ("words", "component"),
    [
        (("plugin", "grpo", "--kind", "advantage_estimator"), "grpo is one of"),
        (("plugin", "group-norm", "--kind", "advantage_estimator"), "group_norm is one of"),
    ],
)
def test_a_name_that_an_installed_component_has_is_refused(rlhf, tmp_path, words, component):
    """With a second one no run could choose either by it."""
    code, _, err = rlhf("new", *words, "--output", tmp_path)

    assert code == 2
    assert "expected the name of no installed advantage_estimator" in err
    assert component in err
    assert f"such as my-{words[1]}" in err
    assert not list(tmp_path.iterdir())


def test_a_name_of_another_kind_is_free(rlhf, tmp_path):
    code, _, _ = rlhf("new", "plugin", "grpo", "--kind", "reward", "--output", tmp_path)

    assert code == 0


def test_an_existing_folder_is_left_alone(rlhf, tmp_path):
    (tmp_path / "rlhf-plugin-mine").mkdir()

    code, _, err = rlhf("new", "plugin", "mine", "--kind", "reward", "--output", tmp_path)

    assert code == 2
    assert "exists already" in err
    assert not list((tmp_path / "rlhf-plugin-mine").iterdir())


def run(*words, environment=None):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
