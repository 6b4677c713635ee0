"""A run that goes on with other plugins, plugin files or versions than it was started with."""

import json

import pytest

SHAPER = """
class Counting:
    def __init__(self):
        self.batches = 0
    def shape(self, batch, info):
        self.batches += 1
        return batch, {}
    def state_dict(self):
        return {"batches": self.batches}
    def load_state_dict(self, state):
        self.batches = state["batches"]
"""


@pytest.fixture
def shaped(workspace):
    (workspace / "shaper.py").write_text(SHAPER)
    return ["--reward.shapers", "shaper.py:Counting"]


def message(capsys):
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("names", [[], ["shaper.py:Counting", "clip"], ["clip"]], ids=str)
def test_other_shapers_than_the_checkpoints_are_refused(train, shaped, names, capsys):
    train("run", *shaped, "--steps", "1")

    flags = ["--reward.shapers", *names] if names else []
    train("run", *flags, "--steps", "2", "--resume", "auto", code=2)

    told = message(capsys)
    expected = ["algorithms:clip" if name == "clip" else name for name in names]
    assert f"--reward.shapers is {expected}" in told
    assert "was made with ['shaper.py:Counting']" in told


def test_the_same_shapers_go_on_with_their_state(train, shaped, workspace):
    train("run", *shaped, "--steps", "1")
    train("run", *shaped, "--steps", "2", "--resume", "auto")

    state = json.loads((workspace / "run/checkpoints/step-00000002/state.json").read_text())
    assert state["shapers"] == [{"batches": 2}]


def test_an_exception_in_load_state_dict_names_plugin_version_and_component(
    train, shaped, workspace, capsys
):
    train("run", *shaped, "--steps", "1")
    (workspace / "shaper.py").write_text(SHAPER.replace('state["batches"]', 'state["count"]'))

    train("run", *shaped, "--steps", "2", "--resume", "auto", code=2)

    told = message(capsys)
    assert "reward shaper shaper.py:counting (shaper.py) cannot take its state back" in told
    assert "KeyError: 'count'" in told
    assert "Traceback" in (workspace / "run/run.log").read_text()


def test_a_changed_plugin_file_is_reported_and_added_to_the_history(train, workspace, caplog):
    train("run", "--steps", "1")
    (workspace / "my_reward.py").write_text("def score(response):\n    return 0.5\n")

    train("run", "--steps", "2", "--resume", "auto")

    (told,) = [text for text in caplog.messages if "another version" in text]
    assert "my_reward.py: file, sha256" in told
    assert told in (workspace / "run/run.log").read_text()
    history = json.loads((workspace / "run/plugins.json").read_text())["history"]
    assert [entry["from_step"] for entry in history] == [0, 1]
    assert history[0]["plugins"]["my_reward.py"] != history[1]["plugins"]["my_reward.py"]


def test_strict_refuses_a_changed_plugin_file_and_changes_nothing(train, workspace, capsys):
    before = train("run", "--steps", "1")
    (workspace / "my_reward.py").write_text("def score(response):\n    return 0.5\n")
    capsys.readouterr()

    after = train("run", "--steps", "2", "--resume", "auto", "--resume.strict", code=2)

    assert "--resume.strict: " in message(capsys)
    assert after == before
    assert len(json.loads((workspace / "run/plugins.json").read_text())["history"]) == 1


def test_strict_accepts_a_run_as_it_was(train):
    train("run", "--steps", "1")
    assert len(train("run", "--steps", "2", "--resume", "auto", "--resume.strict")) == 2


def test_a_plugin_that_is_gone_is_named_with_the_version_to_install(train, workspace, capsys):
    train("run", "--steps", "1")
    path = workspace / "run" / "plugins.json"
    record = json.loads(path.read_text())
    record["history"][-1]["plugins"]["acme"] = "rlhf-plugin-acme 1.2"
    path.write_text(json.dumps(record))
    capsys.readouterr()

    train("run", "--steps", "2", "--resume", "auto", "--loss", "acme:special", code=2)

    assert "pip install rlhf-plugin-acme==1.2" in message(capsys)


def test_a_role_that_the_checkpoint_has_not_is_named(train, capsys):
    train("run", "--steps", "1")

    train("run", "--steps", "2", "--resume", "auto", "--estimator", "gae", code=2)

    assert "has no critic, which this run needs" in message(capsys)
