import datetime
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, Stop, Turn
from rlhf_core.media import MediaRef, MediaSpan, SampleImage
from rlhf_core.problem import Problem, ProblemKind
from rlhf_guard.processes import marked_json
from rlhf_guard.rewards import wire
from rlhf_guard.rewards.outcome import RewardOutcome
from rlhf_testing.errors import has_code


def request(row=None, response="", num_tokens=3, uid="0.0.0.0"):
    return RewardRequest(
        uid=uid,
        row=row or {},
        prompt="p",
        response=response,
        token_ids=tuple(range(num_tokens)),
        action_mask=tuple(index % 2 == 1 for index in range(num_tokens)),
        turns=(Turn(start=1, end=2, reward=0.1, stop=Stop.LENGTH), Turn(start=3, end=4)),
        truncated=True,
    )


def there_and_back(requests):
    return wire.requests_of(marked_json.decode(wire.requests_line(1, requests)))


TEXTS = st.text(st.characters(codec=None), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=8)
    | st.datetimes()
    | st.dates()
    | st.times(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.dictionaries(TEXTS, VALUES, max_size=3), TEXTS, st.integers(0, 9))))
def test_requests_arrive_as_they_were(drawn):
    requests = [request(row, response, count) for row, response, count in drawn]

    assert there_and_back(requests) == requests


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_a_batch_is_sent_in_lines_of_which_the_last_says_so(count):
    requests = [request({"row": index}, uid=f"0.{index}.0.0") for index in range(count)]

    messages = [marked_json.decode(line) for line in wire.request_lines(5, requests, 3)]

    assert [one for message in messages for one in wire.requests_of(message)] == requests
    assert [message["last"] for message in messages] == [False] * ((count - 1) // 3) + [True]
    assert {message["call"] for message in messages} == {5}


@pytest.mark.parametrize(
    "row",
    [
        {"a": {"\0rlhf": False}},
        {"\0rlhf": []},
        {"a": {"\0rlhf": "bytes", "value": "AAAA"}},
        {"a": [{"\0rlhf": {"\0rlhf": b"x"}, "b": "\0rlhf"}], "c": b"y"},
    ],
)
def test_rows_that_hold_the_wires_own_mark_arrive_as_they_were(row):
    requests = [request(row)]

    assert there_and_back(requests) == requests


@pytest.mark.parametrize(
    "text", ["🙂", "\ud800", "a\0b", 'x\n{"call": 1}\n', "é" * 200_000, "\u2028"]
)
def test_odd_text_arrives_as_it_was(text):
    assert there_and_back([request({"text": text}, text)])[0].response == text


def test_samples_of_a_group_share_one_row_on_the_wire_but_not_at_the_other_end():
    row = {"answer": "x" * 1000, "list": [1]}

    line = wire.requests_line(1, [request(row)] * 8)
    first, second, *_ = wire.requests_of(marked_json.decode(line))

    assert line.count(b"x" * 1000) == 1
    assert first.row is not second.row
    assert first.row["list"] is not second.row["list"]


def test_images_arrive_as_references():
    image = MediaRef(sha256="ab" * 32, num_bytes=70, format="png", width=8, height=16)
    shown = SampleImage(folder="/run/media", span=MediaSpan(start=2, length=4, image=image))
    requests = [replace(request(), media=(shown, shown)), request()]

    first, second = there_and_back(requests)

    assert (first.media, second.media) == ((shown, shown), ())
    assert first.media[0].path == f"/run/media/ab/{'ab' * 32}.png"


def test_numpy_values_arrive_as_plain_ones():
    row = {"scalar": np.float32(0.5), "array": np.array([[1, 2]])}

    assert there_and_back([request(row)])[0].row == {"scalar": 0.5, "array": [[1, 2]]}


def test_a_moment_with_a_time_zone_keeps_it():
    moment = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)

    assert there_and_back([request({"at": moment})])[0].row == {"at": moment}


def test_what_cannot_be_sent_is_named_by_uid_and_column():
    requests = [request({"fine": 1}), request({"fine": 1, "image": object()}, uid="0.4.1.0")]

    with pytest.raises(
        RewardError,
        match=r"0\.4\.1\.0: column 'image'.*object",
        check=has_code("reward/unsendable"),
    ):
        wire.requests_line(1, requests)


def test_answers_arrive_as_they_were():
    problem = Problem(
        kind=ProblemKind.RAISED,
        text="raised X",
        where=("a.py:1 in f: x",),
        code="reward/empty-label",
    )
    answer = [
        RewardOutcome(reward=0.1, metrics={"a": 1.5}),
        RewardOutcome(problem=problem),
        RewardOutcome(reward=-0.0),
        RewardOutcome(reward=0.3, step_rewards=((0, 0.1), (7, 0.2))),
    ]

    for sent in (answer, problem):
        assert wire.answer_of(wire.answer_line(3, sent), call=3, count=4) == sent


FORGED = [
    b"",
    b"noise",
    b"\xff",
    b"3",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"call": 3}',
    b'{"call": 4, "reward": [1.0], "metrics": [null], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [1.0, 2.0], "metrics": [null, null], "steps": [null, null], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": ["1"], "metrics": [null], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [true], "metrics": [null], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [NaN], "metrics": [null], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [1e999], "metrics": [null], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": ['
    + b"9" * 400
    + b'], "metrics": [null], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [null], "metrics": [null], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [{"a": []}], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [[1]], "steps": [null], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "steps": [null], "problems": {"x": {}}}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "steps": [null], "problems": []}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "steps": [], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "steps": [[1]], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "steps": [[[1.0, 1.0]]], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "steps": [[[true, 1.0]]], "problems": {}}',
    b'{"call": 3, "reward": [1.0], "metrics": [null], "steps": [[[1, NaN]]], "problems": {}}',
    b'{"call": 3, "reward": [null], "metrics": [null], "steps": [[[1, 1.0]]], '
    b'"problems": {"0": {"kind": "raised", "text": "", "where": [], "code": null}}}',
    b'{"call": 3, "problem": {}}',
    b'{"call": 3, "problem": {"kind": "other", "text": "", "where": [], "code": null}}',
    b'{"call": 3, "problem": {"kind": "raised", "text": "", "where": 1, "code": null}}',
    b'{"call": 3, "reward": {"\\u0000rlhf": []}, "metrics": [], "problems": {}}',
]


@pytest.mark.parametrize("line", FORGED, ids=lambda line: line[:60])
def test_what_is_no_answer_to_the_call_is_refused(line):
    """User code can write to the connection; whatever it writes is a ``ValueError``, which the run knows of."""
    with pytest.raises(ValueError, match=r"."):
        wire.answer_of(line, call=3, count=1)
