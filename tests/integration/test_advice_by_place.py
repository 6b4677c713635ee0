"""Whoever follows the advice of an error gets further: of commands that read what is there, of runs that are built, of
rows, and of episodes. The words of the next attempt are taken from the message, by the test."""

import itertools
import json
import re
import shlex
import shutil

import pytest
from PIL import Image
from tests.advice import remembered, require_progress
from tests.advised_messages import raised_messages

from rlhf_cli.main import main
from rlhf_core import RLHFError
from rlhf_core.media.problem import MediaProblem
from rlhf_plugin_local.runtime import LocalRuntime
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

from .advised_calls import COMMON, EPISODES, ROWS, STARTS, TOOLS, VALUES
from .advised_files import FILES
from .advised_functions import CALLED
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


AGENTS = """
import base64
import json
import urllib.error
import urllib.request
from pathlib import Path

PICTURE = "data:image/png;base64," + base64.b64encode(Path("x.png").read_bytes()).decode()


def asks(times=1, part=None, content="1", **fields):
    def agent(context):
        shown = {"type": "image_url", "image_url": {"url": PICTURE}}
        said = content if part is None else [shown | part]
        body = {"model": context.model, "messages": [{"role": "user", "content": said}]}
        request = urllib.request.Request(
            context.base_url + "/chat/completions",
            json.dumps(body | fields).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {context.api_key}"},
        )
        for _ in range(times):
            try:
                with urllib.request.urlopen(request) as answer:
                    answer.read()
            except urllib.error.HTTPError as error:
                error.close()
                raise
        return 1.0

    return agent


plain = asks(times=2)
long = asks(content="1" * 99)
detailed = asks(part={"image_url": {"url": PICTURE, "detail": "low"}})
sized = asks(part={"max_pixels": 9})
shown = asks(part={})
hot = asks(temperature=0.3, top_p=0.1)
eager = asks(reasoning_effort="high")
misnamed = asks(model="gpt")


def silent(context):
    plain(context)
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
    other_rows = (
        ("--data", "--reward") if "--env" in found else ("--data",) * ("--data.source" in found)
    )
    for flag, value in zip(common[::2], common[1::2], strict=True):
        if flag not in (*found, *other_rows):
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
    (folder / "agents.py").write_text(AGENTS)
    write_tiny_model(folder / "mixed", "qwen3_moe", hidden_size=16, num_layers=1, num_heads=2)
    write_tiny_model(folder / "states", "qwen3_5", hidden_size=16, num_layers=1, num_heads=2)
    write_tiny_vision_model(folder / "seeing")
    Image.new("RGB", (32, 32)).save(folder / "x.png")
    write_model_of_changing_frequencies(folder)
    write_rows(folder / "rows.jsonl", {"prompt": "1", "response": "2"})
    write_rows(folder / "held.jsonl", {"prompt": "7", "response": "8"})
    (folder / "rlhf-plugin-mine").mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        recorded = "train --output run --steps 2 --observers.use token_files --log.samples 16"
        assert main([*completed(recorded), *QUIET]) == 0
        shutil.copytree("run", "other")
        assert main(completed("eval model --output evaluated --rollout.max_new_tokens 3")) == 0
    return folder


def write_model_of_changing_frequencies(folder):
    shutil.copytree(folder / "model", folder / "dynamic")
    file = folder / "dynamic/config.json"
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    changes = {"max_position_embeddings": 64, "rope_parameters": rope}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def write_rows(path, row):
    """Write a row eight times; of a list the first row once, and the last one for the rest."""
    first, last = (row[0], row[-1]) if isinstance(row, list) else (row, row)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in [first, *[last] * 7]))


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
    error_of = remembered(error_of)
    message = error_of(words)
    assert message is not None, words
    assert any(one.place == place and one.says(message) for one in raised_messages()), message
    assert require_progress(error_of, words, VALUES), message


def options_of(words):
    """Return options with their values: of one that several follow, the first."""
    return {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}


def error_of_function(function):
    """Return the function that tells the error of a call with the options of words."""

    def error_of(words):
        try:
            function(options_of(words))
        except (RLHFError, MediaProblem) as error:
            return str(error)
        return None

    return error_of


def run_error(capsys):
    """Return the function that tells the error of a run; each attempt has a folder of its own, unless it names one."""
    number = itertools.count()

    def error_of(words):
        output = (
            []
            if "--output" in words or words[0] == "template"
            else ["--output", f"attempt-{next(number)}"]
        )
        return said_by([*words, *output, "--log.progress", "off"], capsys)

    return error_of


def each(table):
    return [(place, case) for place, cases in table.items() for case in cases]


@pytest.mark.parametrize(("place", "words"), each(TOOLS))
def test_following_the_advice_of_a_command_on_files_gets_further(there, place, words, capsys):
    check(place, completed(words), lambda words: said_by(words, capsys))


@pytest.mark.parametrize(("place", "case"), each(CALLED))
def test_following_the_advice_of_a_function_gets_further(there, place, case):
    function, words = case

    check(place, shlex.split(words), error_of_function(function))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "case"), each(FILES))
def test_following_the_advice_about_files_gets_further(there, request, place, case, capsys):
    if not case.is_whole:
        request.getfixturevalue("ends_when_built")
    case.prepare()
    words = completed(case.words)
    is_run = words[0] in COMMON and words[1] != "compare"
    error_of = run_error(capsys) if is_run else lambda words: said_by(words, capsys)
    if not case.told:
        check(place, words, error_of)
        return
    message = error_of(words)
    assert message is not None
    assert any(one.place == place and one.says(message) for one in raised_messages()), message
    assert case.told in " ".join(message.split())
    case.mend()
    after = error_of(completed(case.then) if case.then else words)
    assert after is None or not any(
        one.place == place and one.says(after) for one in raised_messages()
    ), after


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
