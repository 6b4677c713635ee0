"""The page in Chromium, where that is installed: texts are there as texts, and nothing that they hold has run."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.deadlines import HANG_S
from tests.plugins.lab.run_folders import sample, write_run

from rlhf_plugin_lab.command import main
from rlhf_plugin_lab.paper.contents import replay_command

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
HOSTILE = """</script><script>document.title='pwned'</script><img src=x onerror="document.title='pwned'"> \u202e"""


class Main(HTMLParser):
    """The text of the page's main part, and the names of all its elements."""

    def __init__(self):
        super().__init__()
        self.inside, self.text, self.tags = False, "", []

    def handle_starttag(self, tag, attributes):
        self.inside = self.inside or tag == "main"
        if self.inside:
            self.tags.append(tag)

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "main"

    def handle_data(self, data):
        self.text += data if self.inside else ""


def shown(page, place, folder):
    """The title and the main part of the page at an address behind #, after its program has run."""
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=20000",
        f"--user-data-dir={folder}",
    ]
    command = [BROWSER, *flags, "--dump-dom", f"file://{page}#{place}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    main_part = Main()
    main_part.feed(done.stdout)
    return re.search(r"<title>(.*?)</title>", done.stdout)[1], main_part


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_opens_from_disk_and_a_hostile_rollout_does_not_run(tmp_path):
    hostile = sample(
        "0.6.0.0", prompt=HOSTILE, response=HOSTILE, rewards={HOSTILE: 0.5}, end=HOSTILE
    )
    run = write_run(tmp_path / "run", [sample(), sample("0.5.1.0", reward=0.0), hostile])
    (run / "tokens").mkdir()
    tokens = pa.table(
        {
            "uid": ["0.6.0.0"] * 2,
            "text": [HOSTILE, "last"],
            "rollout_logprob": [-1.5, -0.25],
            "action": [True, False],
        }
    )
    parquet.write_table(tokens, run / "tokens/step-00000001.parquet")
    page = tmp_path / "page.html"
    main([str(run), "--export", str(page)])
    words = {
        "/curves": "reward/mean", "/runs": "actor.adam.lr", "/group/0//1/0.5": "391",
        "/step/0//1": "groups with one reward0 of 1",
        "/rollout/0//1/0.6.0.0/t1": "document.title", "/search/pwned": "1 rollout",
    }  # fmt: skip

    for place, expected in words.items():
        title, found = shown(page, place, tmp_path / "profile")

        assert title == "rlhf view", place
        assert expected in found.text, place
        assert not {"script", "img", "iframe"} & set(found.tags), place
        if place.startswith("/rollout"):
            assert (
                found.text.count("<img src=x onerror=") == 5
            )  # reward, end, prompt, response, token
            assert "RLO" in found.text
            assert "2 tokens, 1 of them the policy's" in found.text
            assert "token 1 last" in found.text


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_step_offers_the_command_that_replays_it_and_a_hostile_name_stays_text(tmp_path):
    name = "<img src=x onerror=\"document.title='pwned'\">; touch $(pwned) it's \u202e\n"
    run = write_run(tmp_path / name, [sample()], [sample(step=1, uid="-1.0.0.0", eval="held")])
    page = tmp_path / "page.html"
    main([str(run), "--export", str(page)])

    title, found = shown(page, "/step/0//1", tmp_path / "profile")

    assert title == "rlhf view"
    assert not {"script", "img", "iframe"} & set(found.tags)
    command = f"{replay_command(run)} --from 1 --to 1"
    assert command in found.text
    assert "ends: not truncated1 (100 %)" in found.text
    assert command.isprintable()
    assert command.endswith("\\xe2\\x80\\xae\\n' --from 1 --to 1")
    _, other = shown(page, "/step/0/held/1", tmp_path / "profile")
    assert "reward/exact" in other.text
    assert "rlhf replay" not in other.text


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_rollout_says_how_to_record_its_tokens_and_their_entropy(tmp_path):
    run = write_run(tmp_path / "run", [sample(), sample("0.6.0.0"), sample("0.7.0.0")])
    (run / "tokens").mkdir()
    tokens = pa.table(
        {
            "uid": ["0.6.0.0", "0.7.0.0"],
            "text": ["3", "9"],
            "action": [True, True],
            "advantage": [0.5, 0.25],
        }
    )
    parquet.write_table(tokens, run / "tokens/step-00000001.parquet")
    page = tmp_path / "page.html"
    main([str(run), "--export", str(page)])

    _, without_tokens = shown(page, "/rollout/0//1/0.5.0.0", tmp_path / "profile")
    _, without_entropy = shown(page, "/rollout/0//1/0.6.0.0", tmp_path / "profile")

    assert "No tokens of this rollout are recorded" in without_tokens.text
    assert "No entropy is recorded" in without_entropy.text
    assert "--algo.loss.old_logprobs recompute" in without_entropy.text
    assert "Neither loss nor clipping is recorded" in without_entropy.text


@pytest.mark.matrix
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_tokens_are_colored_by_their_loss_and_by_the_bound_that_clipped_them(tmp_path):
    run = write_run(tmp_path / "run", [sample()])
    (run / "tokens").mkdir()
    tokens = pa.table(
        {
            "uid": ["0.5.0.0"] * 3,
            "text": ["3", "9", "1"],
            "action": [True] * 3,
            "entropy": [0.5] * 3,
            "loss": [-0.75, 0.25, 0.0],
            "clipped": [1.0, -1.0, 0.0],
        }
    )
    parquet.write_table(tokens, run / "tokens/step-00000001.parquet")
    page = tmp_path / "page.html"
    main([str(run), "--export", str(page)])

    _, found = shown(page, "/rollout/0//1/0.5.0.0/t1", tmp_path / "profile")

    assert "loss: 0.25 clipped: -1" in found.text
    assert "is recorded" not in found.text
