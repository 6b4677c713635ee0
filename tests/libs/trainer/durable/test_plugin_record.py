"""What took part in a run: compared on resume, and kept from start to start."""

import json

import pytest

from rlhf_core.errors import ResumeError
from rlhf_core.fingerprint import LIBRARIES
from rlhf_core.plugins import empty
from rlhf_trainer.durable.plugin_record import append_to_history, lost_plugins, report_changes

LIBRARY_VERSIONS = dict.fromkeys(LIBRARIES, "1.0")


def record(plugins, **libraries):
    return {"plugins": plugins, "components": LIBRARY_VERSIONS | libraries}


BEFORE = record({"acme": "rlhf-plugin-acme 1.0", "reward.py": "file, sha256 aa", "same": "same 1"})
NOW = record({"acme": "rlhf-plugin-acme 1.1", "reward.py": "file, sha256 bb", "same": "same 1"})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plugins.json"


def test_every_change_is_one_line(tmp_path, caplog):
    report_changes(
        BEFORE,
        {**NOW, "components": LIBRARY_VERSIONS | {"torch": "2.0"}},
        checkpoint=tmp_path,
        strict=False,
    )

    assert caplog.messages == [
        "resuming with another version: acme: rlhf-plugin-acme 1.0 -> rlhf-plugin-acme 1.1",
        "resuming with another version: reward.py: file, sha256 aa -> file, sha256 bb",
        "resuming with another version: torch: 1.0 -> 2.0",
    ]


def test_what_came_or_went_is_a_change(tmp_path, caplog):
    report_changes(record({"a": "a 1"}), record({"b": "b 1"}), checkpoint=tmp_path, strict=False)

    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "a: a 1 -> not there",
        "b: not there -> b 1",
    ]


def test_strict_refuses_all_changes_in_one_message(tmp_path):
    with pytest.raises(ResumeError) as caught:
        report_changes(BEFORE, NOW, checkpoint=tmp_path / "step-3", strict=True)

    assert caught.value.exit_code == 2
    assert "step-3" in str(caught.value)
    assert "rlhf-plugin-acme 1.0 -> rlhf-plugin-acme 1.1" in str(caught.value)
    assert "reward.py: file, sha256 aa -> file, sha256 bb" in str(caught.value)


def test_strict_accepts_what_has_not_changed(tmp_path):
    report_changes(BEFORE, BEFORE, checkpoint=tmp_path, strict=True)


def test_the_history_grows_only_by_what_is_new(path):
    append_to_history(path, BEFORE, step=0)
    append_to_history(path, BEFORE, step=5)
    append_to_history(path, NOW, step=8)

    history = json.loads(path.read_text())["history"]
    assert [entry["from_step"] for entry in history] == [0, 8]
    assert history[0]["plugins"] == BEFORE["plugins"]
    assert history[1]["plugins"] == NOW["plugins"]


@pytest.mark.parametrize("content", ["{broken", "[]", '{"history": [1]}', "[" * 100_000])
def test_a_damaged_history_is_kept_aside(path, content, caplog):
    path.write_text(content)

    append_to_history(path, NOW, step=8)

    assert path.with_name("plugins.json.damaged").read_text() == content
    assert "plugins.json.damaged" in caplog.text
    assert [entry["from_step"] for entry in json.loads(path.read_text())["history"]] == [8]


def test_lost_plugins_are_named_as_pip_takes_them(path):
    plugins = empty()
    plugins.loaded["same"] = "same 1"
    recorded = BEFORE["plugins"] | {"mine": "module mine"}
    append_to_history(path, record(recorded), step=0)

    assert lost_plugins(path, plugins) == ["rlhf-plugin-acme==1.0"]


def test_without_a_history_nothing_is_known_to_be_lost(path):
    assert lost_plugins(path, empty()) == []
    path.write_text("{}")
    assert lost_plugins(path, empty()) == []
