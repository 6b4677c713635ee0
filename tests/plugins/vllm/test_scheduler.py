"""Tokens leave vLLM's core in portions, whole and in order, and at once where somebody waits for them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from .driven_scheduler import add_requests, computed, real_scheduler

pytest.importorskip("vllm")

pytestmark = pytest.mark.scale

PORTION = 4


class Steps:
    """Stands for vLLM's scheduler: each step gives the outputs that the test says."""

    def __init__(self) -> None:
        self.requests, self.pause_state, self.unfinished = {}, None, 0

    def update_from_output(self, outputs):
        from vllm.v1.engine import EngineCoreOutputs

        return {0: EngineCoreOutputs(outputs=list(outputs))} if outputs else {}

    def get_num_unfinished_requests(self):
        return self.unfinished

    def finish_requests(self, names):
        return [self.requests.pop(name) for name in names]


@pytest.fixture
def scheduler(monkeypatch):
    from rlhf_plugin_vllm.names import PORTION_VARIABLE
    from rlhf_plugin_vllm.scheduler import InPortions

    monkeypatch.setenv(PORTION_VARIABLE, str(PORTION))

    class Scheduler(InPortions, Steps):
        pass

    scheduler = Scheduler()
    for name in ("a", "b"):
        scheduler.requests[name] = request_of(client=0)
    return scheduler


def request_of(*, client=0, detokenize=False, logprobs=0):
    params = SimpleNamespace(detokenize=detokenize, logprobs=logprobs)
    return SimpleNamespace(client_index=client, sampling_params=params)


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
    return sent(scheduler.update_from_output(outputs) or {0: SimpleNamespace(outputs=[])})


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
    (one,) = scheduler.update_from_output([last])[0].outputs
    assert one.new_token_ids == [1, 2, 3]
    assert one.new_logprobs.logprobs[:, 0].tolist() == [-1.0, -2.0, -3.0]
    assert one.new_logprobs.logprob_token_ids[:, 0].tolist() == [1, 2, 3]
    assert one.new_logprobs.sampled_token_ranks.tolist() == [1, 1, 1]
    assert (one.finish_reason, one.stop_reason) == (FinishReason.STOP, 3)


def test_a_request_that_fails_without_a_token_keeps_those_it_had(scheduler):
    from vllm.v1.engine import EngineCoreOutput, FinishReason

    step(scheduler, output("a", 1, logprob=-1.0))
    failed = EngineCoreOutput("a", [], finish_reason=FinishReason.ERROR)
    (one,) = scheduler.update_from_output([failed])[0].outputs
    assert (one.new_token_ids, one.finish_reason) == ([1], FinishReason.ERROR)
    assert one.new_logprobs.logprobs.shape == (1, 1)


def test_what_is_more_than_tokens_goes_at_once(scheduler):
    step(scheduler, output("a", 1))
    assert step(scheduler, output("a", 2, kv_transfer_params={"x": 1})) == [("a", [1, 2])]


def test_requests_with_stop_strings_are_sent_token_by_token(scheduler):
    scheduler.requests["a"] = request_of(detokenize=True)
    assert step(scheduler, output("a", 1)) == [("a", [1])]


def test_tokens_without_log_probs_are_sent_one_by_one(scheduler):
    scheduler.requests["a"] = request_of(logprobs=None)
    assert step(scheduler, output("a", 1)) == [("a", [1])]


def test_a_pause_sends_what_waits_to_the_client_that_asked(scheduler):
    from vllm.v1.core.sched.interface import PauseState

    scheduler.requests["b"] = request_of(client=1)
    step(scheduler, output("a", 1), output("b", 10))
    assert scheduler.get_num_unfinished_requests() == 0
    scheduler.pause_state = PauseState.PAUSED_ALL
    assert scheduler.get_num_unfinished_requests(), "the core makes one more step"
    messages = scheduler.update_from_output([])
    assert sent(messages, 0) == [("a", [1])]
    assert sent(messages, 1) == [("b", [10])]
    assert not scheduler.get_num_unfinished_requests()


def test_nothing_is_kept_of_a_request_that_was_aborted(scheduler):
    from vllm.v1.core.sched.interface import PauseState

    step(scheduler, output("a", 1), output("b", 10))
    del scheduler.requests["a"]
    scheduler.pause_state = PauseState.PAUSED_ALL
    assert sent(scheduler.update_from_output([])) == [("b", [10])]
    assert not scheduler.get_num_unfinished_requests()


def test_an_aborted_request_leaves_nothing_to_another_of_its_name(scheduler):
    step(scheduler, output("a", 1), output("b", 10))
    aborted = scheduler.requests["a"]
    assert scheduler.finish_requests(["a"]) == [aborted]
    scheduler.requests["a"] = request_of()
    assert step(scheduler, *(output("a", token) for token in (2, 3, 4))) == []
    assert step(scheduler, output("a", 5), output("b", 11)) == [("a", [2, 3, 4, 5])]
    assert step(scheduler, output("b", 12), output("b", 13)) == [("b", [10, 11, 12, 13])]


LENGTHS = [20 + 7 * number for number in range(8)]
PAUSE_AT, AFTER = 25, 1000


class Client:
    """Collects what it is sent."""

    def __init__(self):
        self.tokens, self.logprobs, self.finished, self.num_messages = {}, {}, set(), 0

    def take(self, messages):
        for one in (one for message in messages.values() for one in message.outputs):
            self.num_messages += 1
            self.tokens.setdefault(one.request_id, []).extend(one.new_token_ids)
            if one.new_logprobs is not None:
                rows = one.new_logprobs.logprobs[:, 0].tolist()
                self.logprobs.setdefault(one.request_id, []).extend(rows)
            if one.finish_reason is not None:
                self.finished.add(one.request_id)


def play(scheduler, *, depth):
    """Do what vLLM's core does: keep ``depth`` steps under way, pause once, forget the cache, and go on.

    Returns the client, and how many tokens of each request it and the scheduler had seen at the pause.
    """
    from vllm.v1.core.sched.interface import PauseState

    client, under_way, seen, had, token = Client(), [], {}, {}, 0
    for turn in range(1000):
        if turn == PAUSE_AT:
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


@pytest.mark.parametrize("in_advance", [False, True])
def test_a_client_gets_what_vllms_own_scheduler_sends(folder, monkeypatch, in_advance):
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from rlhf_plugin_vllm.names import PORTION_VARIABLE
    from rlhf_plugin_vllm.scheduler import AsyncPortionScheduler, PortionScheduler

    monkeypatch.setenv(PORTION_VARIABLE, str(PORTION))
    kinds = (AsyncScheduler, AsyncPortionScheduler) if in_advance else (Scheduler, PortionScheduler)
    clients = []
    for kind in kinds:
        scheduler = real_scheduler(kind, folder, in_advance=in_advance)
        add_requests(scheduler, LENGTHS)
        client, seen, had = play(scheduler, depth=2 if in_advance else 1)
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
