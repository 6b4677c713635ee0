"""Tokens leave vLLM's core in portions, whole and in order, and at once where somebody waits for them.

First what is done with vLLM's outputs, whatever they are. Then vLLM's own schedulers, which are not asked about tokens
to which nothing happens: the client gets the same as without that.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from .driven_scheduler import ROOM, TOO_FEW, add_requests, computed, kinds, real_scheduler

pytest.importorskip("vllm")

pytestmark = pytest.mark.scale

PORTION = 4


class Steps:
    """Stands for vLLM's scheduler: each step gives the outputs that the test says."""

    max_model_len = 512

    def __init__(self) -> None:
        self.requests, self.pause_state, self.unfinished = {}, None, 0

    def update_from_output(self, scheduled, outputs):
        from vllm.v1.engine import EngineCoreOutputs

        return {0: EngineCoreOutputs(outputs=list(outputs))} if outputs else {}

    def get_num_unfinished_requests(self):
        return self.unfinished

    def finish_requests(self, names):
        return [self.requests.pop(name) for name in names]


@pytest.fixture
def scheduler(portions):
    from rlhf_plugin_vllm.scheduler import InPortions

    class Scheduler(InPortions, Steps):
        pass

    scheduler = Scheduler()
    scheduler._is_watched = True
    for name in ("a", "b"):
        scheduler.requests[name] = request_of(name)
    return scheduler


def request_of(name, *, client=0, detokenize=False, logprobs=0):
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(detokenize=detokenize, max_tokens=100, logprobs=logprobs)
    return Request(name, [3, 4], params, None, client_index=client)


def output(name, token, *, logprob=None, **more):
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.outputs import LogprobsLists

    logprobs = None
    if logprob is not None:
        row = np.array([[token]]), np.array([[logprob]], dtype=np.float32), np.array([1])
        logprobs = LogprobsLists(*row)
    return EngineCoreOutput(name, [token], new_logprobs=logprobs, **more)


def sent(messages, client=0):
    """(request, its tokens) of what went to a client."""
    return [(one.request_id, one.new_token_ids) for one in messages[client].outputs]


def step(scheduler, *outputs):
    return sent(scheduler.update_from_output(None, outputs) or {0: SimpleNamespace(outputs=[])})


def test_tokens_wait_for_a_portion_of_their_own_request(scheduler):
    assert step(scheduler, output("a", 1), output("b", 10)) == []
    assert step(scheduler, output("a", 2)) == []
    assert step(scheduler, output("a", 3), output("b", 11)) == []
    assert step(scheduler, output("a", 4), output("b", 12)) == [("a", [1, 2, 3, 4])]
    assert step(scheduler, output("b", 13)) == [("b", [10, 11, 12, 13])]


def test_the_last_token_takes_along_those_that_wait(scheduler):
    from vllm.v1.engine import FinishReason

    step(scheduler, output("a", 1, logprob=-1.0))
    step(scheduler, output("a", 2, logprob=-2.0))
    last = output("a", 3, logprob=-3.0, finish_reason=FinishReason.STOP, stop_reason=3)
    (one,) = scheduler.update_from_output(None, [last])[0].outputs
    assert one.new_token_ids == [1, 2, 3]
    assert one.new_logprobs.logprobs[:, 0].tolist() == [-1.0, -2.0, -3.0]
    assert one.new_logprobs.logprob_token_ids[:, 0].tolist() == [1, 2, 3]
    assert one.new_logprobs.sampled_token_ranks.tolist() == [1, 1, 1]
    assert (one.finish_reason, one.stop_reason) == (FinishReason.STOP, 3)


def test_a_request_that_fails_without_a_token_keeps_those_it_had(scheduler):
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    step(scheduler, output("a", 1, logprob=-1.0))
    failed = EngineCoreOutput("a", [], finish_reason=FinishReason.ERROR)
    (one,) = scheduler.update_from_output(None, [failed])[0].outputs
    assert (one.new_token_ids, one.finish_reason) == ([1], FinishReason.ERROR)
    assert one.new_logprobs.logprobs.shape == (1, 1)


def test_routes_wait_with_their_tokens(scheduler):
    """vLLM sends those of the prompt with the first token, and those of each further token with the token."""
    from vllm.v1.engine import FinishReason

    routes = np.arange(24, dtype=np.int16).reshape(
        4, 3, 2
    )  # of 4 tokens, in 3 layers, 2 experts of each
    assert step(scheduler, output("a", 1, routed_experts=routes[:2])) == []
    assert step(scheduler, output("a", 2, routed_experts=routes[2:3])) == []
    last = output("a", 3, routed_experts=routes[3:], finish_reason=FinishReason.STOP)
    (one,) = scheduler.update_from_output(None, [last])[0].outputs
    assert one.new_token_ids == [1, 2, 3]
    assert one.routed_experts.tolist() == routes.tolist()


def test_what_is_more_than_tokens_goes_at_once(scheduler):
    step(scheduler, output("a", 1))
    assert step(scheduler, output("a", 2, kv_transfer_params={"x": 1})) == [("a", [1, 2])]


def test_log_probs_of_the_whole_vocabulary_do_not_wait(scheduler):
    scheduler.requests["a"] = request_of("a", logprobs=-1)
    assert step(scheduler, output("a", 1)) == [("a", [1])]


def test_requests_with_stop_strings_are_sent_token_by_token(scheduler):
    scheduler.requests["a"] = request_of("a", detokenize=True)
    assert step(scheduler, output("a", 1)) == [("a", [1])]


def test_where_another_request_asks_for_more_log_probs_each_gets_those_it_asked_for():
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.outputs import LogprobsLists

    from rlhf_plugin_vllm.writers import Writer

    asked = {"a": 0, "b": 1}
    for name, number in asked.items():
        writer = Writer(request_of(name, logprobs=number), 512)
        for token, width in ((5, 2), (6, 3)):
            ids, ranks = np.arange(token, token + width)[None], np.array([4])
            lists = LogprobsLists(ids, -ids.astype(np.float32), ranks)
            writer.hold(EngineCoreOutput(name, [token], new_logprobs=lists))
        output = writer.release()
        ids = output.new_logprobs.logprob_token_ids
        assert ids.tolist() == [[5, 6][: 1 + number], [6, 7][: 1 + number]]
        assert (output.new_logprobs.logprobs == -ids).all()
        assert output.new_logprobs.sampled_token_ranks.tolist() == [4, 4]
        assert writer.tokens == [], "nothing is sent twice"


def test_a_pause_sends_what_waits_to_the_client_that_asked(scheduler):
    from vllm.v1.core.sched.interface import PauseState

    scheduler.requests["b"] = request_of("b", client=1)
    step(scheduler, output("a", 1), output("b", 10))
    assert scheduler.get_num_unfinished_requests() == 0
    scheduler.pause_state = PauseState.PAUSED_ALL
    assert scheduler.get_num_unfinished_requests(), "the core makes one more step"
    messages = scheduler.update_from_output(None, [])
    assert sent(messages, 0) == [("a", [1])]
    assert sent(messages, 1) == [("b", [10])]
    assert not scheduler.get_num_unfinished_requests()


def test_nothing_is_kept_of_a_request_that_was_aborted(scheduler):
    from vllm.v1.core.sched.interface import PauseState

    step(scheduler, output("a", 1), output("b", 10))
    del scheduler.requests["a"]
    scheduler.pause_state = PauseState.PAUSED_ALL
    assert sent(scheduler.update_from_output(None, [])) == [("b", [10])]
    assert not scheduler.get_num_unfinished_requests()


def test_an_aborted_request_leaves_nothing_to_another_of_its_name(scheduler):
    step(scheduler, output("a", 1), output("b", 10))
    aborted = scheduler.requests["a"]
    assert scheduler.finish_requests(["a"]) == [aborted]
    scheduler.requests["a"] = request_of("a")
    assert step(scheduler, *(output("a", token) for token in (2, 3, 4))) == []
    assert step(scheduler, output("a", 5), output("b", 11)) == [("a", [2, 3, 4, 5])]
    assert step(scheduler, output("b", 12), output("b", 13)) == [("b", [10, 11, 12, 13])]


LENGTHS = [20 + 7 * number for number in range(8)]
PAUSE_AT, AFTER = 25, 1000


class Client:
    """Collects what it is sent."""

    def __init__(self):
        self.tokens, self.logprobs, self.finished, self.num_messages = {}, {}, {}, 0

    def take(self, messages):
        for one in (one for message in messages.values() for one in message.outputs):
            self.num_messages += 1
            self.tokens.setdefault(one.request_id, []).extend(one.new_token_ids)
            if one.new_logprobs is not None:
                rows = one.new_logprobs.logprobs[:, 0].tolist()
                self.logprobs.setdefault(one.request_id, []).extend(rows)
            if one.finish_reason is not None:
                self.finished[one.request_id] = one.finish_reason, one.stop_reason


def play(scheduler, *, depth, pause_at=None):
    """Do what vLLM's core does: keep ``depth`` steps under way, pause once if wanted, forget the cache, and go on.

    Returns the client, and how many tokens of each request it and the scheduler had seen at the pause.
    """
    from vllm.v1.core.sched.interface import PauseState

    client, under_way, seen, had, token = Client(), [], {}, {}, 0
    for turn in range(2000):
        if turn == pause_at:
            scheduler.set_pause_state(PauseState.PAUSED_ALL)
        if not scheduler.has_requests() and not under_way:
            if scheduler.pause_state is not PauseState.PAUSED_ALL:
                return client, seen, had
            had = {name: one.num_output_tokens for name, one in scheduler.requests.items()}
            seen = {name: len(client.tokens[name]) for name in had}
            assert scheduler.reset_prefix_cache(reset_running_requests=True)
            token = AFTER
            scheduler.set_pause_state(PauseState.UNPAUSED)
            continue
        if scheduler.has_requests():
            token += 1
            scheduled = scheduler.schedule()
            under_way.append((scheduled, computed(scheduled, token)))
            if len(under_way) < depth and scheduler.has_requests():
                continue
        client.take(scheduler.update_from_output(*under_way.pop(0)))
    raise AssertionError("the scheduler never came to an end")


@pytest.fixture
def portions(monkeypatch):
    """What the engine tells the scheduler by the environment."""
    from rlhf_plugin_vllm.names import PORTION_VARIABLE

    monkeypatch.setenv(PORTION_VARIABLE, str(PORTION))


@pytest.mark.parametrize("in_advance", [False, True])
def test_at_a_pause_the_client_has_every_token(folder, portions, in_advance):
    clients = []
    for kind in kinds(in_advance):
        scheduler = real_scheduler(kind, folder, in_advance=in_advance)
        add_requests(scheduler, LENGTHS)
        client, seen, had = play(scheduler, depth=2 if in_advance else 1, pause_at=PAUSE_AT)
        assert any(had.values())
        assert seen == had, "at a pause the client has every token"
        assert [len(client.tokens[str(number)]) for number in range(8)] == LENGTHS
        assert len(client.finished) == len(LENGTHS)
        for name, tokens in client.tokens.items():
            assert client.logprobs[name] == [-token for token in tokens]
            before = had.get(name, len(tokens))
            assert [token > AFTER for token in tokens] == [
                position >= before for position in range(len(tokens))
            ]
        clients.append(client)
    assert clients[1].num_messages < clients[0].num_messages / 2


STOPS = [15, 30, 41]


def written(scheduler, *, depth):
    """(tokens, log-probs, reason of the end) of each request."""
    client, _, _ = play(scheduler, depth=depth)
    assert client.finished.keys() == client.tokens.keys()
    return {
        name: (tokens, client.logprobs.get(name), client.finished[name])
        for name, tokens in client.tokens.items()
    }


@pytest.mark.parametrize(
    ("num_blocks", "params"),
    [
        (ROOM, {}),
        (TOO_FEW, {}),
        (TOO_FEW, {"logprobs": None}),
        (ROOM, {"stop_token_ids": STOPS}),
        (TOO_FEW, {"stop_token_ids": STOPS, "min_tokens": 18}),
        (ROOM, {"max_tokens": 10_000}),
    ],
    ids=["room", "too few blocks", "no log-probs", "stops", "stops later", "fills the model"],
)
@pytest.mark.parametrize("in_advance", [False, True])
def test_a_client_gets_what_vllms_own_scheduler_sends(
    folder, portions, in_advance, num_blocks, params
):
    runs = []
    for kind in kinds(in_advance):
        scheduler = real_scheduler(kind, folder, in_advance=in_advance, num_blocks=num_blocks)
        add_requests(scheduler, LENGTHS[:4], **params)
        add_requests(scheduler, LENGTHS[4:], first=4)
        runs.append(written(scheduler, depth=2 if in_advance else 1))
        assert len(runs[-1]) == len(LENGTHS)
    assert runs[0] == runs[1]


def tokens_that_vllm_takes(kind, folder, monkeypatch, *, in_advance):
    """How many tokens go through vLLM's own loop, of requests of ``LENGTHS``."""
    inner, calls = kind._update_request_with_output, []

    def counted(*given, **more):
        calls.append(1)
        return inner(*given, **more)

    monkeypatch.setattr(kind, "_update_request_with_output", counted)
    scheduler = real_scheduler(kind, folder, in_advance=in_advance)
    add_requests(scheduler, LENGTHS)
    written(scheduler, depth=2 if in_advance else 1)
    return len(calls)


@pytest.mark.parametrize("in_advance", [False, True])
def test_vllm_is_only_asked_about_tokens_to_which_something_happens(
    folder, portions, in_advance, monkeypatch
):
    theirs, ours = (
        tokens_that_vllm_takes(kind, folder, monkeypatch, in_advance=in_advance)
        for kind in kinds(in_advance)
    )
    assert (theirs, ours) == (sum(LENGTHS), 2 * len(LENGTHS)), "the first and last of each"


def test_steps_whose_log_probs_have_not_one_row_for_each_request_are_vllms(
    folder, portions, monkeypatch
):
    plain = computed

    def with_rows_of_their_own(scheduled, token):
        step = plain(scheduled, token)
        if step.logprobs is not None:
            starts = list(range(len(step.req_ids) + 1))
            step.logprobs = step.logprobs._replace(cu_num_generated_tokens=starts)
        return step

    monkeypatch.setattr(f"{__name__}.computed", with_rows_of_their_own)
    kind = kinds(True)[1]
    assert tokens_that_vllm_takes(kind, folder, monkeypatch, in_advance=True) == sum(LENGTHS)


@pytest.mark.parametrize("in_advance", [False, True])
def test_requests_that_are_aborted_leave_the_others_alone(folder, portions, in_advance):
    from vllm.v1.request import RequestStatus

    scheduler = real_scheduler(kinds(in_advance)[1], folder, in_advance=in_advance)
    add_requests(scheduler, LENGTHS)
    under_way, client, token = [], Client(), 0
    while scheduler.has_requests() or under_way:
        token += 1
        if scheduler.has_requests():
            scheduled = scheduler.schedule()
            under_way.append((scheduled, computed(scheduled, token)))
        if token == PAUSE_AT:
            scheduler.finish_requests(["3", "7"], RequestStatus.FINISHED_ABORTED)
        if len(under_way) > in_advance or not scheduler.has_requests():
            client.take(scheduler.update_from_output(*under_way.pop(0)))
    assert client.finished.keys() == {"0", "1", "2", "4", "5", "6"}
    assert all(len(client.tokens[name]) == LENGTHS[int(name)] for name in client.finished)
    assert not scheduler._writers
