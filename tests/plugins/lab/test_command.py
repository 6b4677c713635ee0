"""The command ``rlhf view``: the file that it writes, its errors, and the server."""

import base64
import hashlib
import http.client
import json
import re
import threading
from urllib.parse import urlsplit

import pytest
from tests.deadlines import HANG_S
from tests.plugins.lab.run_folders import sample, write_run

from rlhf_cli.main import main as rlhf
from rlhf_core import ConfigError
from rlhf_plugin_lab.command import main
from rlhf_plugin_lab.paper.contents import contents_of
from rlhf_plugin_lab.serving import server_of
from rlhf_testing.errors import has_code

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)> \u202e <!--"


def exported(tmp_path, *runs, words=()):
    path = tmp_path / "page.html"
    assert main([*map(str, runs), "--export", str(path), *words]) == 0
    return path.read_text("utf-8")


def test_the_command_is_one_of_rlhf(run, tmp_path, capsys):
    assert rlhf(["view", str(run), "--export", str(tmp_path / "page.html")]) == 0

    assert "2 steps, 2 metrics, 2 rollouts" in capsys.readouterr().out


def test_the_page_asks_nobody_for_anything(run, tmp_path):
    page = exported(tmp_path, run)

    assert not re.search(
        r"""(?:src|href)=["']?(?:https?:)?//|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|import\(""",
        page,
    )


def test_the_policy_of_the_page_allows_its_own_script_and_style_alone(run, tmp_path):
    page = exported(tmp_path, run)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]

    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, what in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{what} 'sha256-{digest}'" in policy


def test_the_program_of_the_page_makes_no_markup_of_texts(run, tmp_path):
    page = exported(tmp_path, run)

    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "DOMParser",
        "eval(",
        "new Function",
        "javascript:",
    ):
        assert word not in page


def test_a_hostile_text_is_nowhere_in_the_page_as_it_is(tmp_path):
    hostile = sample(HOSTILE, prompt=HOSTILE, response=HOSTILE, rewards={HOSTILE: 1.0}, end=HOSTILE)
    run = write_run(
        tmp_path / HOSTILE.replace("/", ""),
        [hostile | {HOSTILE: 1}],
        lr=json.dumps(HOSTILE.replace("\u202e", "")),
    )

    page = exported(tmp_path, run)

    assert "pwned" not in re.sub(
        r'<script type="application/json" id="index">.*?</script>', "", page
    )
    assert len(re.findall("<script", page)) == 2 + len(
        re.findall(r'<script type="text/plain" id="[bc]\d+">', page)
    )
    assert "<img" not in page
    index = json.loads(re.search(r'id="index">(.*?)</script>', page)[1])
    assert index["runs"][0]["options"]["actor.adam.lr"] == HOSTILE.replace("\u202e", "")


def test_what_is_missing_is_said_on_the_error_output(run, tmp_path, capsys):
    with (run / "samples.jsonl").open("a") as file:
        file.write('{"step": 2')

    exported(tmp_path, run)

    assert "not finished" in capsys.readouterr().err


def test_a_page_is_replaced_and_no_other_file(run, tmp_path):
    assert exported(tmp_path, run) == exported(tmp_path, run)
    (tmp_path / "page.html").write_text("notes of mine")

    with pytest.raises(ConfigError, match="is no page", check=has_code("output/not-exported")):
        exported(tmp_path, run)
    assert (tmp_path / "page.html").read_text() == "notes of mine"


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        ([], "RUN", "usage/command-line"),
        (["none"], "no such folder", "lab/no-run"),
        (["{run}", "--export", "none/page.html"], "no such folder none", "output/not-exported"),
        (["{run}", "--export", "."], "it is a folder", "output/not-exported"),
        (["{run}", "--steps", "1,x"], "expected steps and spans", "usage/spans-of-steps"),
        (["{run}", "--steps", "9-1"], "expected steps and spans", "usage/spans-of-steps"),
        (["{run}", "--max-mb", "0"], "expected 1 or more", "usage/megabytes"),
        (["{run}", "--port", "70000"], "from 0 to 65535", "usage/port"),
        (["{run}", "--color"], "--color", "usage/command-line"),
    ],
)
def test_a_mistake_is_one_error(run, words, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        main([word.format(run=run) for word in words])


def test_steps_are_a_list_with_spans(tmp_path, capsys):
    run = write_run(tmp_path / "run", [sample(step=step) for step in range(1, 9)])

    exported(tmp_path, run, words=["--steps", "1, 3-5"])

    assert "4 rollouts" in capsys.readouterr().out


@pytest.fixture
def served(run):
    server, address = server_of(
        [run], lambda: contents_of([run], max_bytes=10_000_000, wanted=lambda step: True), 0
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield address
    server.shutdown()
    thread.join(HANG_S)
    server.server_close()


def answer(address, path, host=None):
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=HANG_S)
    connection.request("GET", path, headers={"Host": host or place.netloc})
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_the_server_gives_the_page_to_whoever_knows_its_address(served, run):
    place = urlsplit(served)
    assert place.hostname == "127.0.0.1"
    assert len(place.path.strip("/")) >= 32

    status, page = answer(served, place.path)

    assert status == 200
    assert page.startswith(b"<!DOCTYPE html>")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "time_s": 9, "metrics": {"later/metric": 1}}\n')
    assert (
        b"later/metric" in answer(served, place.path)[1]
    )  # a reload shows what the run has done since


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/", None),
        ("{path}index.html", None),
        ("{path}", "evil.example"),
        ("{path}", "evil.example:80"),
        ("/wrong/", None),
    ],
)
def test_the_server_gives_nothing_to_others(served, path, host):
    status, page = answer(served, path.format(path=urlsplit(served).path), host)

    assert status == 404
    assert b"first" not in page


def test_a_run_that_goes_away_while_it_is_served_is_an_error_of_the_page(served, run):
    for file in run.iterdir():
        file.unlink()

    status, page = answer(served, urlsplit(served).path)

    assert status == 503
    assert b"expected a run folder" in page


def test_a_port_that_is_taken_is_an_error(served, run):
    with pytest.raises(ConfigError, check=has_code("usage/port-taken")):
        server_of([run], lambda: None, urlsplit(served).port)
