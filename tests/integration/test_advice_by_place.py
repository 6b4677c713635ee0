"""Whoever follows the advice of an error gets further: of commands that read what is there, of runs that are built, of
rows, and of episodes. The words of the next attempt are taken from the message, by the test."""

import itertools
import json
import re
import shlex
import shutil

import pytest
from PIL import Image
from tests.advice import require_progress
from tests.advised_messages import raised_messages

from rlhf_cli.main import main
from rlhf_core import RLHFError
from rlhf_plugin_local.runtime import LocalRuntime
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

from .advised_calls import COMMON, EPISODES, ROWS, STARTS, TOOLS, VALUES
from .forked_runs import QUIET

BUILT = "everything is built"
PLAYED = """
import asyncio
import itertools

from rlhf_core.contracts import Observation, StepResult


class Four:
    def __init__(self, config=None):
        pass

    def tasks(self, split):
        return [{"key": f"{split}{n}", "prompt": "1"} for n in range(4)]

    async def reset(self, task, seed):
        return Observation()

    async def step(self, action):
        return StepResult(reward=1.0, done=True)

    async def close(self):
        pass


class Endless(Four):
    def tasks(self, split):
        return ({"key": f"{split}{n}", "prompt": "1", "n": n} for n in itertools.count())


class Silent(Four):
    def tasks(self, split):
        return {"train": [{"key": str(n)} for n in range(4)]}[split]


class Slow(Four):
    async def step(self, action):
        await asyncio.sleep(0.3)
        return StepResult(observation=Observation(text="1"), done=action.turn == 1)


class Untrained(Four):
    def tasks(self, split):
        raise KeyError(split)
"""


BLIND = """
from rlhf_core.contracts import Advantages


def blind(batch):
    return Advantages(advantages=batch.rewards[:, None] * batch.action_mask)
"""


def completed(words):
    """Return the words of a case with the common ones of its command that it does not set itself."""
    found = shlex.split(words)
    if found[:2] in (["eval", "compare"], ["train", "model"]) or "--check" in found:
        return found
    common = shlex.split(COMMON.get(found[0], ""))
    for flag, value in zip(common[::2], common[1::2], strict=True):
        if flag not in found and not ("--env" in found and flag in ("--data", "--reward")):
            found += [flag, value]
    return found


def said_by(words, capsys):
    """Return what a command says when it fails; None when it does what it was told, or when its run is built."""
    code = main(list(words))
    printed = capsys.readouterr()
    if code == 0 or BUILT in printed.err:
        return None
    return re.sub(r"^(?:error|warning): ", "", printed.err, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advised")
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    (folder / "reward.py").write_text("def score(response):\n    return float(len(response))\n")
    (folder / "played.py").write_text(PLAYED)
    (folder / "blind.py").write_text(BLIND)
    write_tiny_vision_model(folder / "seeing")
    Image.new("RGB", (32, 32)).save(folder / "x.png")
    write_model_of_changing_frequencies(folder)
    write_rows(folder / "rows.jsonl", {"prompt": "1", "response": "2"})
    write_rows(folder / "held.jsonl", {"prompt": "7", "response": "8"})
    (folder / "rlhf-plugin-mine").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main([*completed("train --output run"), *QUIET]) == 0
        assert main(completed("eval model --output evaluated --rollout.max_new_tokens 3")) == 0
    return folder


def write_model_of_changing_frequencies(folder):
    shutil.copytree(folder / "model", folder / "dynamic")
    file = folder / "dynamic/config.json"
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    changes = {"max_position_embeddings": 64, "rope_parameters": rope}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def write_rows(path, row):
    path.write_text(f"{json.dumps(row)}\n" * 8)


@pytest.fixture
def there(workspace, tmp_path, monkeypatch):
    """A copy of the workspace, in which the test is."""
    folder = tmp_path / "there"
    shutil.copytree(workspace, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return folder


@pytest.fixture
def ends_when_built(monkeypatch):
    """Has runs end when their roles and their engine are there."""
    plain = LocalRuntime.start

    async def start(self, spec, plugins):
        await plain(self, spec, plugins)
        raise RLHFError(BUILT)

    monkeypatch.setattr(LocalRuntime, "start", start)


def check(place, words, error_of):
    message = error_of(words)
    assert message is not None, words
    assert any(one.place == place and one.says(message) for one in raised_messages()), message
    assert require_progress(error_of, words, VALUES), message


def run_error(capsys):
    """Return the function that tells the error of a run; each attempt has a folder of its own, unless it names one."""
    number = itertools.count()

    def error_of(words):
        output = [] if "--output" in words else ["--output", f"attempt-{next(number)}"]
        return said_by([*words, *output, "--log.progress", "off"], capsys)

    return error_of


def each(table):
    return [(place, case) for place, cases in table.items() for case in cases]


@pytest.mark.parametrize(("place", "words"), each(TOOLS))
def test_following_the_advice_of_a_command_on_files_gets_further(there, place, words, capsys):
    check(place, completed(words), lambda words: said_by(words, capsys))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "words"), each(STARTS))
def test_following_the_advice_of_a_start_gets_further(there, ends_when_built, place, words, capsys):
    check(place, completed(words), run_error(capsys))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "case"), each(ROWS))
def test_following_the_advice_about_rows_gets_further(there, ends_when_built, place, case, capsys):
    words, row = case
    write_rows(there / "rows.jsonl", row)

    check(place, completed(words), run_error(capsys))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "words"), each(EPISODES))
def test_following_the_advice_of_an_episode_gets_further(there, place, words, capsys):
    check(place, completed(words), run_error(capsys))
