"""Answers below a grammar: what vLLM is asked for, what it cannot do, and from which distribution log-probs are."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_core import RequestError, RolloutError
from rlhf_core.contracts import Completion, Stop
from rlhf_plugin_vllm.grammars import Grammars
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

from .masked_reference import CLOSE, MASSES, PROMPT, check_a_schema, expected, scaled_logits

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="needs llguidance"
)
EOS = 2
LETTERS = "start: /[a-z]{3}/"
CALL = 1
UNTIL_CALLED = f"start: (other | call)*\nother: <[^{CALL}]>\ncall: <[{CALL}]> /[0-9]{{3}}/"


class FakeWorkers:
    """Note calls, and answer for two ranks of which the first has no logits."""

    def __init__(self, masses=None):
        self.masses, self.calls = masses, []

    async def ask(self, method, *arguments):
        self.calls.append((method, *arguments))
        return [None, self.masses] if method == "rlhf_take_masses" else [None, None]


@pytest.fixture
def grammars_of(byte_tokenizer, spec):
    """Make grammars of an engine that is described by its settings."""

    def make(*, masses=None, tokenizer=byte_tokenizer, eos=(EOS,), **changed):
        config = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(backend=changed.get("backend", "guidance")),
            parallel_config=SimpleNamespace(data_parallel_size=changed.get("data_parallel", 1)),
            speculative_config=changed.get("speculative"),
        )
        llm = SimpleNamespace(
            vllm_config=config,
            get_tokenizer=lambda: tokenizer,
            model_config=SimpleNamespace(get_vocab_size=lambda: len(tokenizer)),
        )
        workers = FakeWorkers(masses)
        made = Grammars(llm, workers, replace(spec, eos_token_ids=eos))
        made.workers = workers
        return made

    return make


def answer(*token_ids):
    count = len(token_ids)
    return Completion(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=np.zeros(count, dtype=np.float32),
        weight_version=np.zeros(count, dtype=np.int32),
        stop=Stop.EOS,
    )


def test_the_workers_measure_from_the_first_grammar_on(grammars_of, make_request):
    grammars = grammars_of()

    async def play():
        await grammars.require(make_request(PROMPT), (7,))
        assert not grammars.workers.calls
        for _ in range(2):
            await grammars.require(make_request(PROMPT, grammar=LETTERS), (7,))

    asyncio.run(play())

    assert grammars.workers.calls == [("rlhf_measure_masses", [7])]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"backend": "xgrammar"}, "structured_outputs_config names the backend xgrammar"),
        ({"data_parallel": 2}, "data_parallel_size > 1; set it to 1"),
        ({"speculative": object()}, "leave engine.vllm.args.speculative_config out"),
        ({"eos": (1,)}, r"by the tokenizer's token 2, and answers end by \[1\]"),
        ({"tokenizer": tiny_tokenizer()}, "llguidance cannot read the model's tokenizer"),
    ],
)
def test_where_forms_cannot_be_held_the_request_is_refused_with_the_reason(
    grammars_of, make_request, changed, problem
):
    grammars = grammars_of(**changed)

    async def play():
        await grammars.require(make_request(PROMPT), (7,))
        with pytest.raises(RequestError, match=problem, check=has_code("engine/form-not-enforced")):
            await grammars.require(make_request(PROMPT, grammar=LETTERS), (7,))

    asyncio.run(play())


def test_a_grammar_that_cannot_be_read_is_the_requests_own_error(grammars_of, make_request):
    with pytest.raises(RequestError, check=has_code("engine/form-unreadable")):
        asyncio.run(grammars_of().require(make_request(PROMPT, grammar="start: nothing"), ()))


@pytest.mark.parametrize("masses", [None, [0.5], [0.5, float("nan")]])
def test_an_answer_that_was_not_measured_is_an_error_of_the_engine(
    grammars_of, make_request, masses
):
    grammars = grammars_of(masses=masses)

    with pytest.raises(RolloutError, match="2 tokens", check=has_code("vllm/grammar-size")):
        asyncio.run(grammars.masses(make_request(PROMPT, grammar=LETTERS), "a", 2, {"a": 0}))


def test_an_answer_has_the_masses_of_the_rank_that_has_logits(grammars_of, make_request):
    grammars = grammars_of(masses=[0.5, 0.25, 0.75, 1.0])
    request = make_request(PROMPT, grammar=LETTERS)
    letters = [grammars._llm.get_tokenizer().convert_tokens_to_ids(each) for each in "abc"]

    async def play(tokens):
        await grammars.require(request, ())
        masses = await grammars.masses(request, "a", len(tokens), {"a": 0})
        return grammars.finished(request, answer(*tokens), masses)

    assert asyncio.run(play([*letters, EOS])).allowed_mass.tolist() == [0.5, 0.25, 0.75, 1.0]
    # vLLM ends an answer where nothing can go on.
    grammars.workers.masses = [0.5, 0.25, 0.0]
    with pytest.raises(RequestError, match="token 3", check=has_code("engine/form-without-tokens")):
        asyncio.run(play([*letters[:2], EOS]))


@pytest.mark.scale
@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_schema_is_obeyed_and_log_probs_are_those_of_the_masked_distribution(
    byte_engine, byte_model, byte_tokenizer, run, make_request, temperature
):
    check_a_schema(byte_engine, byte_model, byte_tokenizer, run, make_request, temperature)


@pytest.mark.scale
@pytest.mark.slow
def test_an_answer_is_free_until_it_calls_and_the_call_alone_has_a_form(
    byte_engine, byte_model, byte_tokenizer, run, make_request
):
    """What strict tools beside ``tool_choice`` ``auto`` ask for: any token but the control word leaves all allowed."""
    request = make_request(
        PROMPT, seeds=tuple(range(16)), grammar=UNTIL_CALLED, temperature=1.5, max_new_tokens=60
    )

    calls = 0
    for row in run(byte_engine.generate(request)):
        logprobs, masses = expected(byte_model[1], request, row, byte_tokenizer)
        np.testing.assert_allclose(row.logprobs, logprobs, **CLOSE)
        np.testing.assert_allclose(row.allowed_mass, masses, **MASSES)
        ids = row.token_ids.tolist()
        held = {place + n for place, token in enumerate(ids) if token == CALL for n in (1, 2, 3)}
        for place, token in enumerate(ids):
            if place in held:
                assert byte_tokenizer.decode([token]).isdigit()
            else:
                assert row.allowed_mass[place] == pytest.approx(1.0)
        calls += ids.count(CALL)
    assert calls


@pytest.mark.scale
@pytest.mark.slow
def test_answers_beside_a_grammar_are_those_without_it(byte_engine, byte_model, run, make_request):
    free = make_request(PROMPT, seeds=tuple(range(4)), number=1)

    async def together():
        below = make_request(PROMPT, seeds=(1, 2), grammar=LETTERS)
        return await asyncio.gather(byte_engine.generate(below), byte_engine.generate(free))

    below, rows = run(together())

    assert all(len(row.token_ids) == 4 for row in below)
    for row in rows:
        assert row.allowed_mass is None
        logits, ids = scaled_logits(byte_model[1], free, row)
        logprobs = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        np.testing.assert_allclose(row.logprobs, logprobs.numpy(), **CLOSE)


@pytest.mark.scale
@pytest.mark.slow
def test_an_answer_goes_on_below_its_grammar_when_the_weights_change(
    byte_engine, byte_model, byte_tokenizer, run, make_request, source_of
):
    """What vLLM computes again after a pause is measured once for each token."""
    request = make_request(
        PROMPT, seeds=(1, 2, 3), grammar="start: /[a-z]{300}/", max_new_tokens=400
    )
    same = dict(byte_model[1].state_dict())

    async def play():
        asked = asyncio.create_task(byte_engine.generate(request))
        while not byte_engine._versions:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await byte_engine.pause()
        await byte_engine.update_weights(5, source_of(same))
        await byte_engine.resume()
        return await asked

    for row in run(play()):
        logprobs, masses = expected(byte_model[1], request, row, byte_tokenizer)
        np.testing.assert_allclose(row.logprobs, logprobs, **CLOSE)
        np.testing.assert_allclose(row.allowed_mass, masses, **MASSES)
