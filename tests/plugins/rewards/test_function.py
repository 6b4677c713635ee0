import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.images import noisy, saved

from rlhf_core import ConfigError, PluginError, RewardError
from rlhf_core.contracts import RewardResult, Turn
from rlhf_core.media import MediaLoader, MediaOptions, MediaSpan, SampleImage
from rlhf_plugin_rewards import function
from rlhf_plugin_rewards.config import FunctionConfig
from rlhf_testing.errors import has_code


@pytest.fixture
def file(tmp_path):
    """``file(source)``: a file with this source; returns a function from a name to its path option."""

    def write(source):
        path = tmp_path / "mine.py"
        path.write_text(source, encoding="utf-8")
        return lambda name="score": f"{path}:{name}"

    return write


@pytest.fixture
def values(results, file):
    """``values(source, requests, **options)``: the rewards of ``score`` in a file with this source."""

    def run(source, requests, **options):
        return [one.reward for one in results("function", requests, path=file(source)(), **options)]

    return run


def test_arguments_are_passed_by_the_names_of_fields_and_columns(values, request_for):
    source = """
def score(uid, prompt, response, row, turns, token_ids, action_mask, truncated, request, answer, missing="default"):
    return [uid, prompt, response, row, turns, token_ids, action_mask, truncated, request.uid, answer, missing]
"""
    (seen,) = values(source, [request_for("hello", 3, answer="42")])

    turns = (Turn(start=1, end=3),)
    assert seen == [
        *("0.3.0.0", "p", "hello", {"answer": "42"}, turns, (1, 2, 3), (False, True, True)),
        *(False, "0.3.0.0", "42", "default"),
    ]


def test_images_are_files_that_the_function_opens(values, request_for, tmp_path):
    loader = MediaLoader(MediaOptions(folder=str(tmp_path / "media")))
    image = loader.take(saved(noisy(20, 12)), tmp_path)
    span = MediaSpan(start=0, length=1, image=image)
    shown = SampleImage(folder=str(tmp_path / "media"), span=span)
    source = """
from PIL import Image

def size(one):
    with Image.open(one.path) as image:
        return image.size

def score(media):
    return [size(one) + (one.span.image.width,) for one in media]
"""

    found = values(source, [replace(request_for(), media=(shown,)), request_for()])

    assert found == [[(20, 12, 20)], []]


def test_extra_gets_everything_that_no_parameter_names(values, request_for):
    source = "def score(response, **extra): return sorted(extra)"

    (seen,) = values(source, [request_for(answer="42", level=1)])

    assert seen == sorted(
        [
            "prompt",
            "row",
            "uid",
            "turns",
            "token_ids",
            "action_mask",
            "truncated",
            "media",
            "answer",
            "level",
        ]
    )


def test_a_field_wins_over_a_column_of_its_name(values, request_for):
    source = "def score(prompt, row): return [prompt, row['prompt']]"

    assert values(source, [request_for(prompt="column")]) == [["p", "column"]]


@pytest.mark.parametrize(
    "source",
    [
        "def score(responses): return [len(r) for r in responses]",
        "async def score(responses): return [len(r) for r in responses]",
        "def score(requests): return [len(r.response) for r in requests]",
        "def score(uids, **lists): return [len(r) for r in lists['responses']]",
        "def score(response): return len(response)",
        "async def score(response): return len(response)",
        "def score(response): return {'reward': len(response)}",
        "score = lambda response: len(response)",
        "import functools\nscore = functools.partial(lambda unit, response: len(response) * unit, unit=1)",
        "class score:\n    def __call__(self, response): return len(response)",
        "import numpy as np\ndef score(responses): return np.array([len(r) for r in responses])",
        "import torch\ndef score(responses): return torch.tensor([len(r) for r in responses])",
    ],
)
def test_all_ways_to_write_a_function_give_the_same_scores_in_order(values, request_for, source):
    requests = [request_for("x" * length) for length in (3, 1, 2, 0)]

    assert values(source, requests) == [3, 1, 2, 0]


def test_batch_can_be_set_for_functions_whose_names_do_not_tell(values, request_for):
    requests = [request_for("a", answer="b"), request_for("bb", answer="c")]
    source = "def score(response, answer): return [r + a for r, a in zip(response, answer)]"

    assert values(source, requests, batch=True) == ["ab", "bbc"]


def test_batch_can_be_unset_when_a_column_has_one_of_the_names(values, request_for):
    source = "def score(rows): return [repr(rows)] if isinstance(rows, list) else rows"

    assert values(source, [request_for(rows=5)]) == ["[{'rows': 5}]"]
    assert values(source, [request_for(rows=5)], batch=False) == [5]


def test_a_field_in_both_numbers_is_refused_unless_one_is_a_column(values, request_for):
    """Both were the list of the batch, in silence."""
    source = "def score(response, responses): return float(response in responses)"
    requests = [request_for("a", responses=["a", "b"])]

    says = "takes 'response' and 'responses': expected one of them"
    with pytest.raises(PluginError, match=says, check=has_code("reward/one-and-many")):
        values(source, requests)
    assert values(source, requests, batch=False) == [1.0]


def test_a_batch_gets_columns_as_lists(values, request_for):
    requests = [request_for(answer="a"), request_for(answer="b")]
    source = "def score(responses, answer, note=None): return [str(answer) + str(note)] * 2"

    assert values(source, requests) == ["['a', 'b']None"] * 2


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "def score(responses): return [1.0]",
            "returned 1 values for 3 responses; expected a list of 3",
        ),
        (
            "def score(responses): return responses[:1] if responses[1:] else [0.5]",
            "returned 1 values for 3",
        ),
    ],
)
def test_no_sample_is_blamed_or_scored_alone_where_the_function_counts_wrongly(
    results, file, request_for, source, told
):
    """Asked with one sample at a time it returns one value, by chance."""
    found = results("function", [request_for(text) for text in "abc"], path=file(source)())

    assert all(isinstance(one, RewardError) and told in str(one) for one in found), found


def scored_by(code, requests):
    config = FunctionConfig(path="mine.py:score")
    return asyncio.run(function.make_function_reward(config, code=code).score(requests))


@pytest.mark.parametrize(("batch_s", "alone_s", "asked"), [(8, 8, 1), (8, 3, 3), (8, 1, 8)])
def test_samples_are_asked_alone_for_the_time_that_their_batch_took(
    monkeypatch, request_for, batch_s, alone_s, asked
):
    """A process that is killed since its time is over would be asked for one sample after the other."""
    now, sizes = [0.0], []
    monkeypatch.setattr(function, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def score(responses):
        sizes.append(len(responses))
        now[0] += batch_s if responses[1:] else alone_s
        return [0.5]

    found = scored_by(score, [request_for(text) for text in "abcdefgh"])

    assert sizes == [8] + [1] * asked
    assert all("returned 1 values for 8 responses" in str(one) for one in found), found


def test_a_first_sample_that_fails_alone_ends_the_search(request_for):
    """The error of the whole is raised, and the run scores samples one by one."""
    sizes = []

    def score(responses):
        sizes.append(len(responses))
        return [0.5 for one in responses if one != "c"]

    with pytest.raises(RewardError, check=has_code("reward/wrong-answer")):
        scored_by(score, [request_for(text) for text in "abcde"])

    assert sizes == [5, 1, 1, 1]


@pytest.mark.parametrize("error", [ValueError("bad"), TimeoutError("judge"), SystemExit(3)])
def test_an_exception_of_an_async_call_of_one_sample_is_a_failure_of_it(request_for, error):
    async def score(responses):
        if responses == ["b"]:
            raise error
        return [0.5]

    with pytest.raises(RewardError, check=has_code("reward/wrong-answer")):
        scored_by(score, [request_for(text) for text in "abc"])


@pytest.mark.parametrize("hangs", [False, True])
def test_async_calls_of_one_sample_run_at_the_same_time_and_end(monkeypatch, request_for, hangs):
    monkeypatch.setattr(function, "LEAST_ALONE_S", 0.05 if hangs else 600.0)
    monkeypatch.setattr(function, "time", SimpleNamespace(monotonic=lambda: 0.0))
    begun, ended = [], []

    async def score(responses):
        if responses[1:]:
            return [0.5]
        begun.append(responses[0])
        try:
            while hangs or len(begun) < 4:
                await asyncio.sleep(0.001)
        finally:
            ended.append(responses[0])
        return [0.5]

    found = scored_by(score, [request_for(text) for text in "abcd"])

    assert sorted(begun) == sorted(ended) == [*"abcd"]
    assert all("returned 1 values for 4 responses" in str(one) for one in found), found


def test_metrics_come_from_the_dict(results, file, request_for):
    path = file("def score(response): return {'reward': 0.5, 'words': len(response.split())}")()

    (one,) = results("function", [request_for("a b c")], path=path)

    assert one == RewardResult(reward=0.5, metrics={"words": 3})


@pytest.mark.parametrize("batch", [False, True])
def test_an_unknown_parameter_is_told_with_the_columns_that_exist(
    results, file, request_for, batch
):
    name = "responses" if batch else "response"
    path = file(f"def score({name}, anwser): return 1")()

    with pytest.raises(RewardError) as caught:
        raise_first(results("function", [request_for(answer="42", level=1)], path=path))

    text = str(caught.value)
    assert "takes 'anwser', which is no column of this row. Did you mean 'answer'?" in text
    assert "Columns: answer, level." in text


def raise_first(results):
    raise results[0]


def test_async_functions_run_at_the_same_time_up_to_the_limit(reward, file, request_for):
    path = file("""
import asyncio
running = most = 0
async def score(response):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running -= 1
    return most
""")()
    component = reward("function", path=path, concurrency=3)

    for _ in range(2):  # with an event loop each, as after a cancelled call
        results = asyncio.run(component.score([request_for() for _ in range(10)]))

    assert max(one.reward for one in results) == 3


def test_a_class_with_a_score_method_is_used_as_it_is(results, file, request_for):
    path = file("""
from rlhf_core.contracts import RewardResult
class Judge:
    async def score(self, requests):
        return [RewardResult(reward=7.0) for _ in requests]
""")("Judge")

    assert [one.reward for one in results("function", [request_for()] * 2, path=path)] == [7.0, 7.0]


def test_a_helper_beside_the_file_can_be_imported(values, request_for, tmp_path):
    (tmp_path / "helper_of_mine.py").write_text("FACTOR = 3")
    source = "from helper_of_mine import FACTOR\ndef score(response): return len(response) * FACTOR"

    assert values(source, [request_for("ab")]) == [6]


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("import nothing_like_this\ndef score(response): ...", ConfigError, "ModuleNotFoundError"),
        ("def score(response:", ConfigError, "not valid Python"),
        ("def scores(response): ...", ConfigError, "Did you mean 'scores'"),
        ("score = 3", PluginError, "is of type int; expected a function"),
        (
            "class Score: pass",
            PluginError,
            r"is of type Score; expected a function.*__call__\(self, response\)",
        ),
        ("def score(response): yield 1", PluginError, "is a generator"),
        ("async def score(response): yield 1", PluginError, "is a generator"),
        ("def score(): return 1", PluginError, "takes no arguments"),
        ("def score(response, /): return 1", PluginError, "by position only"),
        ("score = dict.fromkeys", PluginError, "by position only|no signature"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_when_the_reward_is_built(
    reward, file, source, error, text
):
    with pytest.raises(error, match=text):
        reward("function", path=file(source)())


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ("class Score:\n    def scores(self, response): return 1", True),
        ("class Score: pass", True),
        ("class Score:\n    def __call__(self, response): return 1", False),
        ("class Score:\n    async def score(self, requests): return []", False),
        ("class Score:\n    score = print", False),
        ("class Score(dict): pass", False),
        ("@print\nclass Score: pass", False),
    ],
)
def test_a_class_that_scores_nothing_is_refused_before_the_run(file, source, is_refused):
    config = FunctionConfig(path=file(source)(name="Score"))
    if not is_refused:
        assert config.columns_needed() == {}
        return
    with pytest.raises(PluginError, match="Score", check=has_code("reward/not-a-function")):
        config.columns_needed()


@pytest.mark.usefixtures("no_process_left")
def test_a_broken_file_stops_the_run_at_start_with_its_line(panel_scores, file):
    path = file("x = 1\nimport nothing_like_this\ndef score(response): ...")()

    with pytest.raises(RewardError) as caught:
        panel_scores({"path": path}, [])

    assert "could not be built" in str(caught.value)
    assert "mine.py:2 in <module>: import nothing_like_this" in str(caught.value)


@pytest.mark.parametrize("isolate", [False, True])
def test_odd_text_gets_through_unharmed(panel_scores, file, request_for, isolate):
    texts = ["🙂", "\ud800", "a\0b", "\u2028\n", "é" * 300_000]
    path = file("def score(response, text): return len(response) if response == text else -1.0")()

    scores = panel_scores(
        {"path": path},
        [request_for(text, index, text=text) for index, text in enumerate(texts)],
        isolate=isolate,
    )

    assert [one.reward for one in scores] == [1.0, 1.0, 3.0, 2.0, 300_000.0]


def test_a_relative_path_starts_at_the_working_directory(
    panel_scores, file, request_for, monkeypatch, tmp_path
):
    file("def score(response): return 1")
    monkeypatch.chdir(tmp_path)

    assert panel_scores({"path": "mine.py:score"}, [request_for()])[0].reward == 1.0


@pytest.mark.parametrize("given", ["", "'reward': 0.75, "])
def test_parts_come_from_the_dict_and_their_sum_is_the_reward(results, file, request_for, given):
    parts = "{" + given + "'step_rewards': [(0, 0.5), [1, 0.25]], 'words': 2}"
    path = file(f"def score(response): return {parts}")()

    (one,) = results("function", [request_for("a")], path=path, step_rewards=True)

    assert one.reward == 0.75
    assert one.metrics == {"words": 2}
    assert [tuple(pair) for pair in one.step_rewards] == [(0, 0.5), (1, 0.25)]


def test_no_parts_leave_the_reward_as_it_is(results, file, request_for):
    path = file("def score(response): return {'reward': 0.5, 'step_rewards': []}")()

    (one,) = results("function", [request_for("a")], path=path, step_rewards=True)

    assert (one.reward, one.step_rewards) == (0.5, ())


def test_parts_of_another_form_are_an_error_of_their_sample(results, file, request_for):
    path = file("def score(response): return {'step_rewards': [1.0]}")()

    (one,) = results("function", [request_for("a")], path=path, step_rewards=True)

    assert isinstance(one, RewardError)
    assert "expected pairs of an action's index and a number" in str(one)
