"""Requests that released clients send for structured answers, as recorded, in front of the embedded engine.

``client_requests.json`` has their bodies with the clients' versions. ``make clients`` lets the clients themselves ask,
and compares; ``python -m tests.clients.recording`` writes the file.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from tests.libs.data.chat.zoo import renderer_of, tokenizer_of

from rlhf_core.contracts import EngineSpec, RolloutContext, SamplingParams, Task, Uid
from rlhf_core.rng import seed_of
from rlhf_episodes.answers import MAX_MASKED
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.executor import Endpoint
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.tiny import tiny_config

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="needs llguidance"
)
RECORDED = json.loads(Path(__file__).with_name("client_requests.json").read_text())
NAMES = [f"{each['client']}: {each['mode']}" for each in RECORDED]
WHOLE = [index for index, each in enumerate(RECORDED) if not each["body"].get("stream")]
STREAMED = [index for index, each in enumerate(RECORDED) if each["body"].get("stream")]
TEMPERATURE = 0.25
"""At which a small random model is sure enough of some tokens that a form takes next to nothing away."""
KIND = "hermes"


class Source:
    """Weights of a model, as an engine takes them."""

    def __init__(self, model):
        self.model = model

    def module(self):
        return None

    def buckets(self):
        yield dict(self.model.state_dict())


class KeptEngine(EmbeddedEngine):
    """Keeps what it was asked and what it answered."""

    def __init__(self, config):
        super().__init__(config)
        self.answered = []

    async def generate(self, request):
        found = await super().generate(request)
        self.answered.append((request, found))
        return found


@pytest.fixture(scope="module")
def model():
    """A random model of the template's vocabulary."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(
        "qwen3",
        vocab_size=len(tokenizer_of(KIND)),
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        initializer_range=0.5,
    )
    config.max_position_embeddings = 8192
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def played(model, tmp_path_factory):
    """Send all requests in one episode; return the replies, the rows and the engine."""
    folder = tmp_path_factory.mktemp("recorded") / "model"
    model.save_pretrained(folder)
    tokenizer_of(KIND).save_pretrained(folder)
    renderer, replies = renderer_of(KIND), []

    async def agent(context):
        headers = {"authorization": f"Bearer {context.api_key}"}
        async with httpx.AsyncClient(trust_env=False, timeout=600.0, headers=headers) as client:
            for each in RECORDED:
                url = context.root_url + each["route"]
                replies.append(await client.post(url, json=each["body"]))
        return 1.0

    async def play():
        engine = KeptEngine(EmbeddedEngineConfig(decode="stepwise"))
        spec = EngineSpec(
            model_path=str(folder),
            dtype="float32",
            max_length=8000,
            max_concurrency=4,
            eos_token_ids=(tokenizer_of(KIND).convert_tokens_to_ids("<|im_end|>"),),
        )
        await engine.start(spec, Source(model))
        sampling = SamplingParams(max_new_tokens=24, temperature=TEMPERATURE)
        context = RolloutContext(
            engine=engine,
            renderer=renderer,
            sampling=sampling,
            max_length=8000,
            seed=lambda sample, turn: seed_of(7, "sample", 0, 3, sample, turn),
        )
        task = Task(
            uid=Uid(0, 3), prompt_ids=(), messages=({"role": "user", "content": "?"},), row={}
        )
        endpoint = Endpoint(EndpointConfig(agent="played_by_a_test:agent"))
        try:
            return await endpoint.run(task, [0], context), engine
        finally:
            await engine.close()

    module = type(sys)("played_by_a_test")
    module.agent = agent
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)
        rows, engine = asyncio.run(play())
    return replies, rows, engine


def demands_a_form(body):
    """Whether a request leaves the policy no other kind of answer, or holds what it calls to a schema."""
    if any(each.get("function", each).get("strict") for each in body.get("tools", ())):
        return True
    shown = body.get("response_format") or body.get("text", {}).get("format") or {}
    return shown.get("type") not in (None, "text") or body.get("tool_choice") not in (None, "auto")


@pytest.mark.parametrize("index", range(len(RECORDED)), ids=NAMES)
def test_a_recorded_request_is_served(played, index):
    reply = played[0][index]

    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("index", STREAMED, ids=NAMES.__getitem__)
def test_a_stream_says_how_it_ended(played, index):
    events = played[0][index].text.split("\n\n")

    ends = {
        "/v1/chat/completions": "data: [DONE]",
        "/v1/responses": "event: response.completed",
    }
    kinds = ("event: response.incomplete", ends[RECORDED[index]["route"]])
    assert events[-1] == ""
    assert events[-2].startswith(kinds)


@pytest.mark.parametrize("index", WHOLE, ids=NAMES.__getitem__)
def test_the_openai_client_reads_the_reply_as_its_own_types(played, index):
    """All four frameworks hand replies to these models, which a missing field or one of another type fails."""
    openai = pytest.importorskip("openai")
    kinds = {
        "/v1/chat/completions": openai.types.chat.ChatCompletion,
        "/v1/responses": openai.types.responses.Response,
    }
    kind = kinds[RECORDED[index]["route"]]

    read = kind.model_validate(played[0][index].json(), strict=True)

    assert type(read) is kind
    assert read.to_dict(mode="json") == played[0][index].json()
    if kind is openai.types.chat.ChatCompletion:
        (choice,) = read.choices
        assert choice.message.content is not None or choice.message.tool_calls
    else:
        assert {item.type for item in read.output} <= {"message", "function_call", "reasoning"}


def test_each_form_that_is_demanded_is_held(played):
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer

    replies, _, engine = played
    served = [
        each["body"]
        for each, reply in zip(RECORDED, replies, strict=True)
        if reply.status_code == 200
    ]
    tokenizer = from_tokenizer(tokenizer_of(KIND))
    assert len(served) == len(engine.answered)
    for body, (request, (answer,)) in zip(served, engine.answered, strict=True):
        grammar = request.sampling.grammar
        assert (grammar is not None) == demands_a_form(body)
        if grammar is not None:
            matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
            written = answer.token_ids[answer.token_ids != request.prompt_ids[0]].tolist()
            assert matcher.validate_tokens(written) == len(written)


@torch.no_grad()
def test_where_a_form_left_the_choice_the_first_update_has_a_ratio_of_1(played, model):
    """The trainer's log-prob is that of the policy without the form, and the row's is the sampler's."""
    _, rows, engine = played
    ratios = []
    for row in rows:
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        logits = model(ids[None]).logits[0, :-1].double() / TEMPERATURE
        logprobs = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0].numpy()
        acts = np.asarray(row.action_mask)[1:]
        ratios.append(np.exp(logprobs[acts] - row.rollout_logprobs))
    below = [answer for request, (answer,) in engine.answered if request.sampling.grammar]
    learned = sum(int((each.allowed_mass >= 1.0 - MAX_MASKED).sum()) for each in below)
    total = sum(len(each.token_ids) for each in below)
    assert 0 < learned < total
    np.testing.assert_allclose(np.concatenate(ratios), 1.0, atol=1.01 * MAX_MASKED)
