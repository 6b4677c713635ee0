"""Runs of older commits are read whole: each folder of ``older_runs`` is of the repository as it was that day.

They are three steps of ``examples/reverse_digits``, and ``2026-11-24-two-turn`` two of ``examples/two_turn``, made by
the code of the commits 22965e81, 0606fff9, 4e53b093 and 94359c14, without models, checkpoints, pictures and logs.
"""

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from rlhf_cli.main import main as rlhf

OLDER = sorted(path for path in (Path(__file__).parent / "older_runs").iterdir() if path.is_dir())


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def unpacked(page):
    """The index of a page, and its chunks by name."""
    index = json.loads(re.search(r'id="index">(.*?)</script>', page)[1])
    chunks = re.findall(r'<script type="text/plain" id="([bc]\d+)">(.*?)</script>', page)
    return index, {
        name: json.loads(gzip.decompress(base64.b64decode(data))) for name, data in chunks
    }


@pytest.fixture(params=OLDER, ids=lambda path: path.name)
def older(request):
    return request.param


def test_a_page_of_an_older_run_has_every_rollout_with_its_text(older, tmp_path, capsys):
    assert rlhf(["view", str(older), "--export", str(tmp_path / "page.html")]) == 0

    index, chunks = unpacked((tmp_path / "page.html").read_text("utf-8"))
    (described,) = index["runs"]
    found = {}
    for step in described["steps"]:
        table = chunks[step["part"]]
        for uid, reward, place in zip(table["uid"], table["reward"], table["place"], strict=True):
            turns = chunks[place[0]][place[1]]["turns"]
            text = "".join(each for _, _, each in turns)
            found[step["set"], step["step"], uid] = (reward, text)
    recorded = lines_of(older / "samples.jsonl") + lines_of(older / "eval_samples.jsonl")
    assert found == {
        (each.get("eval", ""), each["step"], each["uid"]): (
            pytest.approx(each["reward"], rel=1e-5),
            each["prompt"] + each["response"],
        )
        for each in recorded
    }
    assert described["problems"] == []
    assert described["options"]["model.path"]


def test_show_prints_the_metrics_of_an_older_run(older, capsys):
    assert rlhf(["show", str(older), "--metrics", "reward/mean", "--table", "json"]) == 0

    steps = [each for each in lines_of(older / "metrics.jsonl") if "metrics" in each]
    assert json.dumps(steps[-1]["metrics"]["reward/mean"]) in capsys.readouterr().out


def test_doctor_reads_an_older_run_and_says_what_it_could_not_look_at(older, capsys):
    assert rlhf(["doctor", str(older), "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == []
    assert report["steps"] == lines_of(older / "metrics.jsonl")[-1]["step"]
    reasons = {each["reason"] for each in report["not_looked_at"]}
    assert "fewer than 20 steps" in reasons
    assert "metrics.jsonl has no kl/ref" in reasons
