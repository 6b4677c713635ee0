import subprocess
import sys

import pytest


def test_registering_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'datasets', 'sympy', 'math_verify', 'regex'}"
    code = f"import sys, rlhf_plugin_rewards; print(sorted({heavy} & {{*sys.modules}}))"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_the_function_reward_says_that_it_wraps_code(plugins):
    assert plugins.get("rlhf_rewards", "rewards:function").component.provides == {"wraps_code"}


@pytest.mark.parametrize(
    ("name", "options", "columns"),
    [
        ("exact_match", {"label_key": "right"}, {"right": "label_key"}),
        ("math", {}, {"answer": "label_key"}),
        ("http", {"urls": ["http://a:1/x"]}, {}),
        ("http", {"urls": ["http://a:1/x"], "label_key": "gold"}, {"gold": "label_key"}),
        ("regex", {"pattern": "{not_one}"}, {}),
        ("regex", {"pattern": "{a} {b[0]}{{2}}", "columns": True}, dict.fromkeys("ab", "pattern")),
        ("regex", {"pattern": "{", "columns": True}, {}),
        ("regex", {"pattern": "{a.b}", "columns": True}, {"a.b": "pattern"}),
    ],
)
def test_rewards_say_which_columns_they_need(plugins, name, options, columns):
    component = plugins.get("rlhf_rewards", f"rewards:{name}")

    assert component.validate(options).columns_needed() == columns


@pytest.mark.parametrize(
    ("name", "label", "problem"),
    [
        ("math", None, "is empty"),
        ("math", float("nan"), "has nan"),
        ("math", ["1", "2"], "has ['1', '2']"),
        ("math", "3 apples and 4 pears", "more than one answer"),
        ("math", "so #### 1,042", None),
        ("math", ["18"], None),
        ("exact_match", None, "is empty"),
        ("exact_match", {"text": "a"}, "--reward.exact_match.label_key answer.text"),
        ("exact_match", b"a", "has b'a'"),
        ("exact_match", ["a", None], None),
        ("http", None, "is empty"),
        ("http", {"a": 1}, None),
        ("regex", None, "is empty"),
        ("regex", float("nan"), "is empty"),
        ("regex", "", None),
    ],
)
def test_rewards_say_which_rows_they_cannot_score(plugins, name, label, problem):
    own = {
        "http": {"urls": ["http://a:1/x"], "label_key": "answer"},
        "regex": {"pattern": "{answer}", "columns": True},
    }
    options = plugins.get("rlhf_rewards", f"rewards:{name}").validate(own.get(name, {}))

    found = options.row_problem({"prompt": "x", "answer": label})

    assert (found is None) == (problem is None)
    assert (problem or "") in (found or "")


@pytest.mark.parametrize(
    ("source", "columns"),
    [
        (
            "def score(prompt, response, answer, *, level, other=None, last=1, **more): ...",
            "answer level",
        ),
        ("async def score(prompts, responses, answer, rows, requests): ...", "answer"),
        ("def score(request, prompt, response, row, uid, turns, truncated, media): ...", ""),
        ("def score(response, answer=None, *parts): ...", ""),
        ("@wrapped\ndef score(response, answer): ...", ""),
        ("class score:\n    def score(self, requests): ...", ""),
        ("from others import score", ""),
    ],
)
def test_a_function_needs_the_columns_that_its_parameters_name(plugins, tmp_path, source, columns):
    (tmp_path / "mine.py").write_text(source + "\n")
    options = plugins.get("rlhf_rewards", "function").validate(
        {"path": f"{tmp_path}/mine.py:score"}
    )

    assert options.columns_needed() == dict.fromkeys(columns.split())
