"""The reward ``http``: its protocol, answers that cannot be used, and what a run gets."""

from __future__ import annotations

import pytest

from rlhf_core import RewardError
from rlhf_testing.conformance import run_checks, subject
from rlhf_testing.errors import has_code


def rewards(results):
    return [result.reward for result in results]


def test_the_protocol_is_openrlhf_s(serve, ask):
    server = serve(
        lambda message: (200, {"rewards": [1.5], "scores": [0.5], "extra_logs": {"good": [0.25]}})
    )

    (result,) = ask([server.url], ["response"], label_key="answer")

    assert server.messages == [{"query": ["presponse"], "prompts": ["p"], "labels": ["a"]}]
    assert (result.reward, result.metrics) == (1.5, {"score": 0.5, "good": 0.25})


def test_labels_are_null_and_token_ids_absent_unless_asked_for(serve, ask):
    server = serve()

    ask([server.url], ["r"])
    ask([server.url], ["r"], send_token_ids=True)

    assert [message["labels"] for message in server.messages] == [[None], [None]]
    assert [message.get("token_ids") for message in server.messages] == [None, [[1, 2, 3]]]


def test_samples_are_sent_in_batches_and_come_back_in_order(serve, ask):
    server = serve()

    found = ask([server.url], ["x" * n for n in range(10)], batch_size=4)

    assert rewards(found) == [1.0 + n for n in range(10)]
    assert sorted(len(message["query"]) for message in server.messages) == [2, 4, 4]


def test_nothing_to_score_asks_nobody(serve, ask):
    server = serve()

    assert ask([server.url], []) == []
    assert server.messages == []


def test_the_token_comes_from_the_environment_and_is_sent_as_a_header(serve, ask, monkeypatch):
    server = serve()
    ask([server.url], ["r"])

    monkeypatch.setenv("MY_TOKEN", "secret")
    ask([server.url], ["r"], token_env="MY_TOKEN")

    assert [headers.get("Authorization") for headers in server.headers] == [None, "Bearer secret"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((200, "<html>"), "answered no JSON"),
        ((200, [1.0]), "answered a list; expected an object with 'rewards'"),
        ((200, {"reward": [1.0]}), "answered an object with 'reward'; expected 'rewards'"),
        ((200, {"rewards": [1.0]}), "answered 1 rewards for 2 samples"),
        ((200, {"rewards": None}), "answered a NoneType as rewards; expected a list of 2 numbers"),
        ((200, {"rewards": [1, 2], "extra_logs": {"a": [1]}}), "answered 1 extra_logs 'a' for 2"),
        ((401, {"error": "who?"}), 'status 401 (set the variable that token_env names'),
        ((404, "nothing here"), "status 404: nothing here"),
        ((307, ""), "status 307 (it has moved to"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_used_is_an_error_and_is_not_asked_for_again(
    serve, ask, answer, text
):
    server = serve(lambda message: answer)

    found = ask([server.url], ["r", "s"])

    assert all(isinstance(one, RewardError) for one in found)
    assert text in str(found[0])
    assert server.url in str(found[0])
    assert len(server.messages) == 1


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "null", '"1.0"', "[1.0]"])
def test_a_sample_without_a_finite_reward_is_an_error_of_its_own(serve, ask, bad):
    server = serve(lambda message: (200, f'{{"rewards": [1.0, {bad}, 2.0]}}'))

    first, second, third = ask([server.url], ["r", "s", "t"])

    assert (first.reward, third.reward) == (1.0, 2.0)
    assert isinstance(second, RewardError)
    assert "expected a finite number" in str(second)


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_sample_that_the_server_refuses_costs_nobody_else_the_reward(
    length_of, serve, ask, status
):
    def answer(message):
        bad = any("bad" in query for query in message["query"])
        return (status, "one is bad") if bad else length_of(message)

    server = serve(answer)

    found = ask([server.url], ["a", "b", "bad", "d", "e", "f", "g", "h"])

    assert isinstance(found[2], RewardError)
    assert f"{server.url}: status {status}: one is bad" in str(found[2])
    assert rewards(found[:2] + found[3:]) == [2.0] * 7


def test_a_long_answer_is_shown_in_its_first_characters_alone(serve, ask):
    server = serve(lambda message: (404, "<p>\n" + "x" * 10_000))

    (found,) = ask([server.url], ["r"])

    assert len(str(found)) < 400
    assert "status 404: <p> xxx" in str(found)


@pytest.mark.parametrize(
    ("urls", "text"),
    [
        (["localhost:5000"], "expected http://HOST:PORT/PATH"),
        (["ftp://host/x"], "expected http://HOST:PORT/PATH"),
        (["http://me:secret@host/x"], "has a name or password in it"),
        (["http://host/x", "http://host/x"], "the same address twice"),
        ([], "at least 1 item"),
    ],
)
def test_addresses_are_checked_at_the_start(plugins, urls, text):
    with pytest.raises(ValueError, match=text) as caught:
        plugins.get("rlhf_rewards", "http").validate({"urls": urls})

    assert "secret@" not in caught.value.errors()[0]["msg"]


def test_the_contract_holds(serve, plugins):
    server = serve()
    tried = subject(plugins.get("rlhf_rewards", "http"), urls=[server.url])

    outcomes = run_checks("rlhf_rewards", tried)

    assert len(outcomes) == 5
    assert [outcome for outcome in outcomes if outcome.failed] == []


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("isolate", [True, False])
def test_a_run_gets_scores_and_reasons_whether_isolated_or_not(
    fast, serve, panel_scores, request_for, isolate
):
    def answer(message):
        numbers = [float("nan") if "bad" in query else 1.0 for query in message["query"]]
        return 200, {"rewards": numbers}

    server = serve(answer)
    options = {"urls": [server.url], **fast}
    requests = [request_for("good", 0), request_for("bad", 1)]

    scores = panel_scores(
        options, requests, component="http", on_error="value", error_value=-1.0, isolate=isolate
    )
    with pytest.raises(
        RewardError,
        match=r"could not score 0\.1\.0\.0.*the server's reward is nan",
        check=has_code("reward/wrong-answer"),
    ):
        panel_scores(options, requests, component="http", isolate=isolate)

    assert [one.reward for one in scores] == [1.0, -1.0]
