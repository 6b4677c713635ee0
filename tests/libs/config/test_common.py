"""Variables of the chat template as options: from the command line, a file, and as JSON text."""

import pytest
from pydantic import ValidationError

from rlhf_config.run import PromptData


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"enable_thinking": "false"}, {"enable_thinking": False}),
        ({"enable_thinking": True, "budget": "512"}, {"enable_thinking": True, "budget": 512}),
        ({"share": "0.5", "less": "-1"}, {"share": 0.5, "less": -1}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        ({"date": "26 Jul 2024", "code": "007"}, {"date": "26 Jul 2024", "code": "007"}),
        ('{"enable_thinking": false, "tags": ["a"]}', {"enable_thinking": False, "tags": ["a"]}),
    ],
)
def test_words_are_what_they_say(given, read):
    assert PromptData(chat_template_kwargs=given).chat_template_kwargs == read


@pytest.mark.parametrize("given", ["thinking", "[1]", [1]])
def test_what_is_no_table_is_refused(given):
    with pytest.raises(ValidationError, match="valid dictionary"):
        PromptData(chat_template_kwargs=given)
