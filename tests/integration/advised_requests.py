"""Requests, episodes and servers that are refused while they go on."""

import asyncio
import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from tests.plugins.agents.conftest import CountingEnvironment, Stage
from tests.plugins.agents.test_images import Pads, windowed
from tests.plugins.conftest import _reward_batch
from tests.plugins.endpoint.conftest import EpisodePlayer
from tests.plugins.endpoint.test_images import ONE, of_chat

from rlhf_config.isolation import IsolationOptions
from rlhf_core import Config
from rlhf_core.component import ComponentRef
from rlhf_core.contracts import Action, Observation, Stop, Task, Uid
from rlhf_core.media import ImageReader, MediaLoader, MediaOptions
from rlhf_guard.environments.chosen import Environments
from rlhf_guard.environments.host import EnvironmentHost
from rlhf_guard.environments.listening import token_of
from rlhf_guard.environments.places import read_token
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_plugin_agents.single_turn import SingleTurn
from rlhf_plugin_algorithms.advantages.gdpo import Gdpo, GdpoConfig
from rlhf_plugin_algorithms.advantages.group_norm import GroupNorm, GroupNormConfig
from rlhf_plugin_endpoint.dialects.request_images import RequestImages
from rlhf_testing.fakes import FakeEngine

from .advised_case import Advised


def environment_of(task_environment, names):
    chosen = Environments(SimpleNamespace(name=name) for name in names)
    chosen.of(Task(uid=Uid(0, 0), environment=task_environment))


async def restarted(restarts):
    """End a worker, and ask for another."""
    folder = str(Path(__file__).parents[1] / "libs/guard/environments")
    probe = ComponentRef(kind="rlhf_environments", name="probe", options={"size": 4})
    options = IsolationOptions(isolation="process", restarts=restarts)
    # Workers get sys.path from the run.
    with contextlib.ExitStack() as stack:
        stack.enter_context(changed_environment(RLHF_PLUGINS="probe_environments"))
        sys.path.insert(0, folder)
        stack.callback(sys.path.remove, folder)
        host = EnvironmentHost("probe", probe, "probes 1.0", options)
        try:
            environment = host.make()
            await environment.reset(Task(uid=Uid(0, 0)), 0)
            with contextlib.suppress(Exception):
                await environment.step(Action(text="die", token_ids=(1,), stop=Stop.EOS, turn=0))
            await environment.close()
            await host.make().reset(Task(uid=Uid(0, 1)), 0)
        finally:
            await host.close()


@contextlib.contextmanager
def changed_environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def token(variable, file, served):
    """Read the token of servers; ``rlhf env serve`` writes one first."""
    if served:
        token_of(Path(served))
    with changed_environment(RLHF_ENV_TOKEN=variable):
        read_token(file)


def window(images, last, max_images):
    windowed([[2]] if images else [["text"]], Path(), last, images=images, max_images=max_images)


def turns(environment):
    stage = Stage()
    task = Task(uid=Uid(0, 3), prompt_ids=tuple(stage.renderer.encode("question")))
    asyncio.run(MultiTurn(MultiTurnConfig()).run(task, [0], stage.context(environment)))


def episode(executor, prompt, max_length, environment):
    stage = Stage()
    task = Task(uid=Uid(0, 3), prompt_ids=tuple(stage.renderer.encode(prompt)))
    asyncio.run(executor.run(task, [0], stage.context(environment, max_length=max_length)))


def opening():
    return CountingEnvironment(first=Observation(text="Go."))


def advantages(estimator, named):
    batch = _reward_batch([[(1, 1.0)], [(1, 0.0)]], group=[0, 0])
    columns = {name: torch.tensor([1.0, 0.0]) for name in named}
    estimator(replace(batch, rewards_by_name=columns, reward_weights=dict.fromkeys(named, 1.0)))


def played(times, max_length, delay_s, **limits):
    """Play an agent that asks several times, and raise what it is told."""
    said = []

    def agent(context):
        body = {"model": context.model, "messages": [{"role": "user", "content": "question"}]}
        request = urllib.request.Request(
            f"{context.base_url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {context.api_key}"},
        )
        for _ in range(times):
            try:
                with urllib.request.urlopen(request) as answer:
                    answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    said.append(json.loads(error.read())["error"]["message"])
        return 1.0

    play = EpisodePlayer(Path())
    play.engine = FakeEngine(delay_s=delay_s)
    with contextlib.suppress(Exception):
        play(agent, context=play.context(max_length=max_length), **limits)
    if said:
        raise AssertionError(said[0])


def image_of_request(sees):
    reader = ImageReader(MediaLoader(MediaOptions(folder="media")), Pads()) if sees else None
    RequestImages(reader, ignores_overrides=False).part(of_chat(ONE), "messages[0]")


SINGLE, MULTI = SingleTurn(Config()), MultiTurn(MultiTurnConfig())
PLAIN_EPISODE = {"executor": SINGLE, "max_length": 1000, "environment": None}
ASKED = {"times": 1, "max_length": 2000, "delay_s": 0.0}

REQUESTS_REFUSED = {
    "rlhf_guard/environments/chosen.py:of": [
        Advised(
            call=environment_of,
            wrong={"task_environment": "sea", "names": ("maze", "lake")},
            told={
                "Choose it with --env": {"names": ("maze", "lake", "sea")},
                "name another one in the row's column 'environment'": {"task_environment": "lake"},
            },
        )
    ],
    "rlhf_guard/environments/host.py:_count_restart": [
        Advised(
            call=restarted,
            wrong={"restarts": 0},
            told={"raise --env.probe.restarts": {"restarts": 1}},
            slow=True,
        )
    ],
    "rlhf_guard/environments/places.py:read_token": [
        Advised(
            call=token,
            wrong={"variable": None, "file": None, "served": None},
            told={
                "expected a token for the servers of environments in the variable RLHF_ENV_TOKEN": {
                    "variable": "x" * 32
                },
                "or in a file that token_file names": {"file": "token", "served": "token"},
                "rlhf env serve --token-file FILE writes one": {"file": "token", "served": "token"},
            },
        )
    ],
    "rlhf_plugin_agents/image_window.py:window_of": [
        Advised(
            call=window,
            wrong={"images": False, "last": 2, "max_images": 4},
            told={"Set --model.vision": {"images": True}, "leave the option out": {"last": None}},
        ),
        Advised(
            call=window,
            wrong={"images": True, "last": 5, "max_images": 4},
            told={"Set it to 4 or less": {"last": 4}, "raise --data.max_images": {"max_images": 5}},
        ),
    ],
    "rlhf_plugin_agents/multi_turn.py:_environment": [
        Advised(
            call=turns,
            wrong={"environment": None},
            told={"choose one with --env": {"environment": CountingEnvironment}},
        )
    ],
    "rlhf_plugin_agents/single_turn.py:run": [
        Advised(
            call=episode,
            wrong={**PLAIN_EPISODE, "prompt": ""},
            told={
                "Give --data": {"prompt": "1"},
                "choose --executor multi_turn with --env, where the environment writes the first observation": {
                    "executor": MULTI,
                    "environment": opening,
                },
            },
        ),
        Advised(
            call=episode,
            wrong={**PLAIN_EPISODE, "prompt": "12345678", "max_length": 8},
            told={
                "raise --rollout.max_length": {"max_length": 12},
                "lower --data.max_prompt_tokens": {"prompt": "123"},
            },
        ),
    ],
    "rlhf_plugin_algorithms/advantages/gdpo.py:__call__": [
        Advised(
            call=advantages,
            wrong={"estimator": Gdpo(GdpoConfig()), "named": ()},
            told={
                "Add some with --reward": {"named": ("exact",)},
                "choose --estimator grpo": {"estimator": GroupNorm(GroupNormConfig())},
            },
        )
    ],
    "rlhf_plugin_endpoint/dialects/request_images.py:part": [
        Advised(
            call=image_of_request,
            wrong={"sees": False},
            told={"the run chooses what reads images with --model.vision": {"sees": True}},
        )
    ],
    "rlhf_plugin_endpoint/episode/session.py:_admit": [
        Advised(
            call=played,
            wrong={**ASKED, "times": 2, "max_requests": 1},
            told={"for more raise --rollout.endpoint.max_requests": {"max_requests": 2}},
        ),
    ],
    "rlhf_plugin_endpoint/episode/token_budget.py:check": [
        Advised(
            call=played,
            wrong={**ASKED, "times": 2, "max_tokens": 1},
            told={"for more raise --rollout.endpoint.max_tokens": {"max_tokens": 999}},
        ),
    ],
    "rlhf_plugin_endpoint/episode/session.py:_generate": [
        Advised(
            call=played,
            wrong={**ASKED, "delay_s": 0.2, "request_timeout_s": 0.01},
            told={
                "for more time raise --rollout.endpoint.request_timeout_s": {
                    "request_timeout_s": 60.0
                }
            },
        )
    ],
    "rlhf_plugin_endpoint/episode/session.py:_most_tokens": [
        Advised(
            call=played,
            wrong={**ASKED, "max_length": 20},
            told={"or raise --rollout.max_length in the run": {"max_length": 2000}},
        )
    ],
}
"""Place -> calls, one for each message."""
