"""Agents that send images: what the engine reads, what trains, and what a client is told of a bad one."""

import asyncio
import base64
import re
import sys
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import anthropic
import httpx
import numpy as np
import openai
import pytest
from tests.deadlines import HANG_S
from tests.images import noisy, refused, saved
from tests.plugins.vlm.vlm_material import OBJECTIVE, SGD, VLM, Stage

from rlhf_core.contracts import (
    Completion,
    RoleSpec,
    RolloutContext,
    SamplingParams,
    Task,
    TrajectoryColumns,
    Uid,
    VisionSpec,
)
from rlhf_core.media import MediaLimits, MediaLoader, MediaOptions, references_in
from rlhf_core.plugins import load
from rlhf_core.rng import seed_of
from rlhf_episodes import EpisodeGraph
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.executor import Endpoint
from rlhf_plugin_endpoint.traces import graph_from_trace, trace_from_graph
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.tiny_vision import write_tiny_vision_model

ONE, OTHER = noisy(24, 16), noisy(24, 16).rotate(180)


def encoded(image) -> str:
    return base64.b64encode(saved(image)).decode()


def of_chat(image) -> dict:
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{encoded(image)}", "detail": "auto"},
    }


def text(words: str) -> dict:
    return {"type": "text", "text": words}


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    path = write_tiny_vision_model(tmp_path_factory.mktemp("model"), initializer_range=0.1)
    media = tmp_path_factory.mktemp("run") / "media"
    spec = RoleSpec(
        role="policy",
        model_path=str(path),
        objective=OBJECTIVE,
        optimizer=SGD,
        max_grad_norm=None,
        vision=VisionSpec(component=VLM, media_folder=str(media)),
    )
    return Stage(path, media, load(), spec)


@pytest.fixture(scope="module")
def backend(stage):
    return stage.backend()


class Recorder:
    """An engine that keeps what it is asked."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        return await self._engine.generate(request)


@asynccontextmanager
async def opened(stage, backend):
    engine = EmbeddedEngine(EmbeddedEngineConfig(slots=8))
    await engine.start(stage.engine_spec(), backend)
    yield Recorder(engine)
    await engine.close()


def played(stage, backend, agent, task=None):
    """Return the trajectories of an agent's episode and the requests that the engine got.

    A random model samples control tokens, which no template writes, so that turns would fork with ``as_sent``.
    """
    module = type(sys)("agent_that_sees")
    module.agent = agent
    sys.modules[module.__name__] = module

    async def playing():
        async with opened(stage, backend) as engine:
            context = RolloutContext(
                engine=engine,
                renderer=stage.renderer,
                sampling=SamplingParams(max_new_tokens=6),
                max_length=400,
                seed=lambda sample, turn: seed_of(1, f"{sample}/{turn}"),
                images=stage.images,
            )
            config = EndpointConfig(agent=f"{module.__name__}:agent", thoughts="keep")
            rows = await Endpoint(config).run(task or Task(uid=Uid(0, 0)), [0], context)
            return rows, engine.requests

    return asyncio.run(playing())


def chat(context):
    with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        messages = [{"role": "user", "content": [text("which?"), of_chat(ONE)]}]
        for _ in range(2):
            reply = client.chat.completions.create(model=context.model, messages=messages)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": [of_chat(OTHER), text("and this?")]})


def responses(context):
    def part(image):
        url = f"data:image/png;base64,{encoded(image)}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}

    def words(said):
        return {"type": "input_text", "text": said}

    with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        first = [{"role": "user", "content": [words("which?"), part(ONE)]}]
        reply = client.responses.create(model=context.model, input=first)
        client.responses.create(
            model=context.model,
            previous_response_id=reply.id,
            input=[{"role": "user", "content": [part(OTHER), words("and this?")]}],
        )


def messages(context):
    def part(image):
        source = {"type": "base64", "media_type": "image/png", "data": encoded(image)}
        return {"type": "image", "source": source}

    with anthropic.Anthropic(base_url=context.root_url, api_key=context.api_key) as client:
        said = [{"role": "user", "content": [text("which?"), part(ONE)]}]
        for _ in range(2):
            reply = client.messages.create(model=context.model, max_tokens=6, messages=said)
            said.append({"role": "assistant", "content": reply.content})
            said.append({"role": "user", "content": [part(OTHER), text("and this?")]})


@pytest.mark.parametrize("agent", [chat, responses, messages], ids=lambda each: each.__name__)
def test_an_image_of_each_turn_is_read_trained_and_agrees(stage, backend, agent):
    (row,), (first, second) = played(stage, backend, lambda context: (agent(context), 1.0)[1])

    one, other = (references_in_store(stage, image) for image in (ONE, OTHER))
    assert [span.image for span in first.media] == [one]
    assert [span.image for span in second.media] == [one, other]
    # The second request goes on with the tokens of the first and of its answer, as they were read and sampled.
    answer = row.token_ids[len(first.prompt_ids) : row.turns[0].end].tolist()
    assert second.prompt_ids[: row.turns[0].end] == (*first.prompt_ids, *answer)
    assert row.token_ids[: len(second.prompt_ids)].tolist() == list(second.prompt_ids)
    assert row.media == second.media
    # 24 by 16 pixels are 3 by 2 patches of 8 by 8.
    assert [span.length for span in row.media] == [6, 6]
    marker = stage.images.tokens.marker_id
    assert {row.token_ids[span.start : span.end].tolist().count(marker) for span in row.media} == {
        6
    }
    assert not row.action_mask[row.token_ids == marker].any()
    batch = TrajectoryColumns.from_trajectories([row])
    np.testing.assert_allclose(backend.logprobs(batch), row.rollout_logprobs, atol=1e-4)
    np.testing.assert_allclose(stage.own_logprobs(batch), row.rollout_logprobs, atol=1e-4)


def references_in_store(stage, image):
    return stage.images.loader.take(saved(image), stage.media)


def test_equal_words_about_other_images_are_other_questions(stage, backend):
    """Both images have the same number of tokens, so that nothing but the images tells the requests apart."""
    asked = {}

    def agent(context):
        with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as client:

            def ask(name, image, said=()):
                start = {"role": "user", "content": [of_chat(image), text("which?")]}
                reply = client.chat.completions.create(model=context.model, messages=[start, *said])
                asked[name] = reply.choices[0].message.model_dump(exclude_none=True)

            threads = [
                threading.Thread(target=ask, args=("one", ONE)),
                threading.Thread(target=ask, args=("other", OTHER)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            ask("next", ONE, [asked["one"], {"role": "user", "content": "sure?"}])
        return 1.0

    rows, requests = played(stage, backend, agent)
    again, _ = played(stage, backend, agent)

    assert requests[0].prompt_ids == requests[1].prompt_ids
    assert requests[0].seeds != requests[1].seeds
    assert sorted(len(row.turns) for row in rows) == [1, 2]
    one = references_in_store(stage, ONE)
    assert [span.image for row in rows if len(row.turns) == 2 for span in row.media] == [one]
    assert rows[0].metrics["graph/segments"] == 2.0
    assert [row.token_ids.tolist() for row in again] == [row.token_ids.tolist() for row in rows]


def test_a_prompt_with_images_is_given_to_the_agent_as_it_can_send_it(stage, backend):
    reader = stage.images
    parts = [{"type": "image", "image": saved(ONE)}, text("how many?")]
    said = reader.messages([{"role": "user", "content": parts}])
    images = references_in(said)
    task = Task(
        uid=Uid(0, 0),
        messages=said,
        prompt_ids=tuple(stage.renderer.render(said)),
        media=images,
    )

    def agent(context):
        assert context.prompt == "how many?"
        with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as client:
            client.chat.completions.create(model=context.model, messages=context.messages)
        return 1.0

    (row,), (request,) = played(stage, backend, agent, task)

    assert request.prompt_ids == reader.expand(task.prompt_ids, images).token_ids
    assert [span.image for span in row.media] == list(images)


def test_a_trace_keeps_the_images(stage, backend, tmp_path):
    rows, _ = played(stage, backend, lambda context: (chat(context), 1.0)[1])
    (row,) = rows
    graph, used = EpisodeGraph(row.uid), 0
    for turn in row.turns:
        sampled = slice(used, used + turn.end - turn.start)
        used = sampled.stop
        answer = Completion(
            token_ids=row.token_ids[turn.start : turn.end],
            logprobs=row.rollout_logprobs[sampled],
            weight_version=row.weight_version[sampled],
            stop=turn.stop,
        )
        read = [span for span in row.media if span.end <= turn.start]
        graph.add(row.token_ids[: turn.start], answer, media=read)

    again = graph_from_trace(trace_from_graph(graph), row.uid)

    assert len(row.turns) == len(row.media) == 2
    assert [one.media for one in again.trajectories()] == [row.media]


def test_tokens_of_images_without_an_image_are_refused(stage, backend):
    marker = stage.images.tokens.marker_id

    def agent(context):
        with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as client:
            with pytest.raises(openai.BadRequestError, match="0 images and 2 places") as error:
                client.completions.create(model=context.model, prompt=[5, marker, marker, 6])
            assert error.value.code == "images_and_places_differ"
            client.completions.create(model=context.model, prompt=[5, 6])
        return 1.0

    played(stage, backend, agent)


BAD = {
    **{
        name: (f"data:image/png;base64,{base64.b64encode(content).decode()}", reason, 400)
        for name, (content, reason, _) in refused().items()
    },
    "a page": ("https://example.org/a.png", "expected the image itself", 400),
    "a file": ("file:///etc/hostname", "expected the image itself", 400),
    "a path": ("/etc/hostname", "expected the image itself", 400),
    "no base64": ("data:image/png,abc", "expected a data URL in base64", 400),
    "broken base64": ("data:image/png;base64,@@@", "malformed", 400),
    "no text": (7, "expected a string", 400),
    "many pixels": (of_chat(noisy(80, 80))["image_url"]["url"], "allows 5000", 400),
}


@pytest.mark.parametrize("name", BAD)
def test_a_client_is_told_what_is_wrong_with_an_image(play, tmp_path, name):
    url, reason, status = BAD[name]
    part = {"type": "image_url", "image_url": {"url": url}}

    error = told(play, tmp_path, [part])

    assert error["status"] == status
    assert re.search(reason, error["message"]), error
    assert error["param"].startswith("messages[0].content[0]")
    assert error["type"] == "invalid_request_error"
    assert not (tmp_path / "media").exists()


def test_further_problems_of_images_are_told(play, tmp_path):
    good = of_chat(ONE)
    detail = {**good, "image_url": {**good["image_url"], "detail": "low"}}
    cases = {
        "too_many_images": [good] * 3,
        "not_overridable": [detail],
        "not_overridable ": [{**good, "max_pixels": 3136}],
        "unsupported_content": [{"type": "input_audio", "input_audio": {}}],
        "invalid_type": [{"type": "image_url", "image_url": "data:..."}],
    }
    for code, content in cases.items():
        assert told(play, tmp_path, content)["code"] == code.strip()
    assert told(play, tmp_path, [good], role="system")["code"] == "unsupported_content"
    blind = told(play, None, [good])
    assert blind["code"] == "unsupported_content"
    assert "--model.vision" in blind["message"]
    page = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    assert "expected base64" in told(play, tmp_path, [page], route="messages")["message"]
    kept = {"type": "input_image", "file_id": "file-1"}
    asked = {"input": [{"role": "user", "content": [kept]}]}
    assert told(play, tmp_path, [], route="responses", **asked)["code"] == "invalid_type"


def test_an_agent_that_gives_up_for_too_many_images_is_truncated(play, tmp_path):
    """As one is that has no room for tokens; what it did before is trained."""

    def agent(context):
        key = {"authorization": f"Bearer {context.api_key}"}
        with httpx.Client(base_url=context.base_url, headers=key, timeout=HANG_S) as client:
            client.post("completions", json={"model": context.model, "prompt": "good"})
            said = [{"role": "user", "content": [of_chat(ONE)] * 3}]
            reply = client.post("chat/completions", json={"model": context.model, "messages": said})
        assert reply.json()["error"]["code"] == "too_many_images"
        raise RuntimeError("the agent gives up")

    loader = MediaLoader(
        MediaOptions(folder=str(tmp_path / "media"), limits=MediaLimits(max_images=2))
    )
    (row,) = play(agent, context=replace(play.context(), images=FakeReader(loader)))

    assert row.metrics["end/context"] == 1.0
    assert row.metrics["turns"] == 1.0


def told(play, folder, content, *, role="user", route="chat/completions", **asked) -> dict:
    """Return the error that a client gets for a message's content."""
    found = {}

    def agent(context):
        body = {
            "model": context.model,
            "max_tokens": 5,
            "messages": [{"role": role, "content": content}],
            **asked,
        }
        key = {"authorization": f"Bearer {context.api_key}"}
        with httpx.Client(base_url=context.base_url, headers=key, timeout=HANG_S) as client:
            reply = client.post(route, json=body)
            found.update(reply.json()["error"], status=reply.status_code)
            assert reply.headers["x-should-retry"] == "false"
            said = [{"role": "user", "content": "good"}]
            if folder is None:
                client.post("chat/completions", json={"model": context.model, "messages": said})
            else:
                client.post("completions", json={"model": context.model, "prompt": "good"})
        return 1.0

    context = play.context()
    if folder is not None:
        limits = MediaLimits(max_images=2, max_pixels=5000)
        loader = MediaLoader(MediaOptions(folder=str(folder / "media"), limits=limits))
        context = replace(context, images=FakeReader(loader))
    (row,) = play(agent, context=context)
    assert row.metrics["turns"] == 1.0
    return found


class FakeReader:
    """Takes images in as a run does; its tokens are never asked for."""

    def __init__(self, loader: MediaLoader) -> None:
        self.loader = loader
        self.tokens = type("Tokens", (), {"never_sampled": (), "marker_id": -1})()

    def messages(self, messages, images=(), folder=None):
        return self.loader.messages(messages, images, folder)

    def expand(self, token_ids, images):
        from rlhf_core.media import expanded

        return expanded(token_ids, images, self.tokens)
