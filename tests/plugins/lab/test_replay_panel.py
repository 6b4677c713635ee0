"""Replay from the page: which options it offers, which runs are parts of a replay, and the command that it builds."""

import json
import os
import subprocess
from importlib.resources import files
from urllib.parse import unquote

import pytest
from tests.plugins.lab.run_folders import sample, write_lines, write_run
from tests.plugins.lab.test_browser import BROWSER, HOSTILE, shown
from tests.plugins.lab.test_contents import contents
from tests.plugins.lab.test_shell_words import NAMES

from rlhf_core import ConfigError
from rlhf_plugin_lab.command import main
from rlhf_plugin_lab.paper.contents import quoted
from rlhf_plugin_lab.recorded.options import offered
from rlhf_plugin_lab.recorded.replay_note import note_of, with_replayed, write_note
from rlhf_testing.errors import has_code


@pytest.fixture
def replayed(tmp_path):
    """A run and a replay of its two steps with another rate."""
    run, out = write_run(tmp_path / "run", [sample()]), tmp_path / "out"
    for name, shift in (("original", 0.0), ("changed", 1.0)):
        write_run(out / name, [sample(reward=shift)])
        lines = [
            {"step": step, "time_s": step, "metrics": {"reward/mean": 0.25 * step + shift}}
            for step in (1, 2)
        ]
        write_lines(out / name / "metrics.jsonl", lines)
    write_note(out, run, 1, 2, ["--actor.adam.lr", "0.01", "--loss", HOSTILE])
    return run, out


def test_a_replays_folder_is_its_runs_in_the_page(replayed):
    run, out = replayed
    runs = list(with_replayed([run, out]))

    assert runs == [run, out / "original", out / "changed"]
    (replay,) = contents(*runs).index["replays"]
    assert (replay["of"], replay["original"], replay["changed"]) == (0, 1, 2)
    assert (replay["from"], replay["to"]) == (1, 2)
    assert replay["words"].startswith("--actor.adam.lr 0.01 --loss $'")


def test_a_replay_is_known_without_its_run_and_without_a_note(replayed):
    _, out = replayed

    (alone,) = contents(out / "changed").index["replays"]
    (out / "replay.json").unlink()

    assert (alone["of"], alone["original"], alone["changed"]) == (None, None, 0)
    assert list(with_replayed([out])) == [out / "original", out / "changed"]
    assert contents(out / "changed").index["replays"] == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"run": 3, "first": "x", "changed": 5}', "[" * 9999]
)
def test_a_note_that_is_none_ends_nothing(replayed, text):
    _, out = replayed
    (out / "replay.json").write_text(text)

    note = note_of(out / "original")

    assert note is None or (note.run, note.first, note.changed) == ("", 0, ())


def test_a_folder_without_a_run_is_an_error_as_before(tmp_path):
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, check=has_code("lab/not-a-run")):
        main([str(tmp_path / "empty"), "--export", str(tmp_path / "page.html")])


@pytest.mark.parametrize(
    ("path", "value", "of_rollouts", "of_examples"),
    [
        ("actor.adam.lr", "0.1", True, True),
        ("actor.optim", "adam", False, False),
        ("algo.loss.ppo.clip_low", "0.2", True, False),
        ("train.inner_epochs", "1", True, False),
        ("rollout.temperature", "1.0", False, False),
        ("reward.use", '["a.py:score"]', False, False),
        ("algorithm", "x", False, False),
    ],
)
def test_options_are_offered_that_a_replay_may_change(path, value, of_rollouts, of_examples):
    assert offered(path, value, has_rollouts=True) is of_rollouts
    assert offered(path, value, has_rollouts=False) is of_examples


def exported(runs, page, script=""):
    """A page, with a script in it that its own policy would not let run."""
    main([*map(str, runs), "--export", str(page)])
    if script:
        head, _, tail = page.read_text().partition('<meta http-equiv="Content-Security-Policy"')
        text = f"{head}<meta {tail}</html>".replace(
            "</body></html>",
            f"<script>setTimeout(() => {{ {script} }}, 500)</script></body></html>",
        )
        page.write_text(text)
    return page


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_replay_is_a_table_beside_the_run_and_hostile_words_stay_text(replayed, tmp_path):
    page = exported(replayed, tmp_path / "page.html")

    for place in ("/step/0//1", "/group/0//1/0.5", "/rollout/0//1/0.5.0.0"):
        title, found = shown(page, place, tmp_path / "profile")

        assert title == "rlhf view"
        assert not {"script", "img", "iframe"} & set(found.tags)
        assert "Replayed, steps 1 to 2: --actor.adam.lr 0.01" in found.text
        assert "step 10.25 / 0.25 / 1.25step 20.5 / 0.5 / 1.5" in found.text


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_fields_build_the_command_as_a_shell_reads_it(tmp_path):
    run = write_run(tmp_path / "my run", [sample()])
    value, folder = """0.5; touch "$(pwned)" it's""", "-new folder"
    script = f"""
      dispatchEvent(new KeyboardEvent("keydown", {{ key: "r" }}));
      const [from, to, value, out] = document.querySelectorAll(".replay input");
      document.title = String(document.activeElement === from && document.querySelector(".replay").open);
      const set = (box, text, event = "input") => {{ box.value = text; box.dispatchEvent(new Event(event)); }};
      set(to, "2");
      set(document.querySelector(".replay select"), "actor.adam.lr", "change");
      set(value, {json.dumps(value)});
      set(out, {json.dumps(folder)});
    """.replace("</", "<\\/")
    page = exported([run], tmp_path / "page.html", script)

    title, found = shown(page, "/step/0//1", tmp_path / "profile")

    assert title == "true"  # the key r leads to the first field
    start = f"rlhf replay {quoted(str(run))} --from 1 --to 2"
    assert f"{start} --actor.adam.lr {quoted(value)} --out {quoted('./' + folder)}" in found.text
    assert f"rlhf view {quoted(str(run))} {quoted('./' + folder)}" in found.text
    assert "now 0.001" in found.text


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_quotes_words_as_python_does(tmp_path):
    names = [name for name in NAMES if name and name == os.fsencode(name).decode(errors="ignore")]
    program = (files("rlhf_plugin_lab") / "page" / "replay.js").read_text()
    words = json.dumps(names).replace("</", "<\\/")
    script = f"{program}\ndocument.title = JSON.stringify({words}.map(shellWord).map(encodeURIComponent));"
    page = tmp_path / "words.html"
    page.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><title></title><main></main><script>{script}</script>"
    )

    title, _ = shown(page, "", tmp_path / "profile")

    found = [unquote(each) for each in json.loads(title.replace("&quot;", '"'))]
    assert found == [quoted(name) for name in names]
    read = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {' '.join(found)}"], capture_output=True, check=True
    )
    assert read.stdout.decode().split("\0")[:-1] == names
