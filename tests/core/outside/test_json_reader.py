"""JSON from outside fails as one error that names its reason, in every reader of files, rows and answers."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from rlhf_cli.records import records_of as shown_samples
from rlhf_cli.template import _read_tools
from rlhf_config.automatic.choosing import model_config
from rlhf_core import ConfigError, RLHFError
from rlhf_core.outside.json_reader import (
    MAX_DEPTH,
    BrokenJson,
    parse_form,
    parse_json,
    parse_object,
    read_object,
)
from rlhf_core.storage.run_folder import _step_of as step_of
from rlhf_core.typed_table import typed
from rlhf_data.chat.template_kwargs import kwargs_of
from rlhf_data.files.text_files import parse_row
from rlhf_data.forms.chats import decoded
from rlhf_data.learned.messages import tools_of
from rlhf_data.rows import RowProblem
from rlhf_testing.errors import has_code

DIGITS = "9" * 400
TEXTS = [
    *("", " ", "null", "true", "7", '"text"', "[]", "{}", "[1", '{"a"', '{"a": 1}x', "NaN", "\x00"),
    '{"a": 1, "a": []}',
    *("1e999", "-Infinity", DIGITS, "9" * 6000, '"\\ud800"', '{"a": {"a": {"a": null}}}'),
    *("[" * depth + "]" * depth for depth in (50, 200, 5000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (200, 5000)),
    *(f'{{"{name}": {value}}}' for name in ("messages", "weight_map", "peft_type", "step", "seed")
      for value in ("null", "[]", "{}", '"x"', "Infinity", DIGITS, "[" * 300 + "]" * 300)),
]  # fmt: skip
BYTES = [*(text.encode() for text in TEXTS), b"\xff\xfe\x00", b"\xc3", b"\xef\xbb\xbf{}"]


@dataclass(frozen=True, kw_only=True)
class Inner:
    at: tuple[int, ...]
    pair: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Form:
    name: str
    kind: Literal["a", "b"] = "a"
    size: float | None = None
    inner: tuple[Inner, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    rest: Any = None


def test_a_form_gives_each_field_its_type():
    text = '{"name": "n", "size": 2, "inner": [{"at": [1, 2], "pair": [3, 4]}], "scores": {"x": 1}, "rest": [1]}'

    form = parse_form(text, Form)

    assert form == Form(
        name="n", size=2.0, inner=(Inner(at=(1, 2), pair=(3, 4.0)),), scores={"x": 1.0}, rest=[1]
    )
    assert isinstance(form.size, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", r"expected an object, got list \[\]"),
        ("{}", "missing field 'name'"),
        ('{"name": "n", "more": 1}', "unknown field 'more'"),
        ('{"name": 1}', "expected name to be str, got int 1"),
        ('{"name": "n", "kind": "c"}', "expected kind to be .*'a', 'b'.*, got str 'c'"),
        ('{"name": "n", "size": true}', "expected size to be float, got bool True"),
        (f'{{"name": "n", "size": {DIGITS}}}', "size is no number that a float holds"),
        ('{"name": "n", "inner": [{"at": ["x"]}]}', r"expected inner\[0\].at\[0\] to be int, got"),
        (
            '{"name": "n", "inner": [{"at": [], "pair": [1]}]}',
            r"expected inner\[0\].pair to be tuple",
        ),
        ('{"name": "n", "inner": [3]}', r"expected an object in inner\[0\], got int 3"),
        ('{"name": "n", "scores": {"x": null}}', "expected scores.x to be float, got NoneType"),
    ],
)
def test_another_form_is_named_by_its_place(text, message):
    with pytest.raises(BrokenJson, match=message):
        parse_form(text, Form)


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 5000, 200_000])
def test_the_depth_has_a_limit(depth):
    text = "[" * depth + "]" * depth
    if depth <= MAX_DEPTH:
        assert parse_json(text)
    else:
        with pytest.raises(BrokenJson, match="nested more than 100"):
            parse_json(text)


def test_many_values_side_by_side_are_not_deep():
    rows = [{"a": [index]} for index in range(1000)]

    assert parse_json(json.dumps(rows)) == rows


def _parsed(data: bytes, folder: Path) -> None:
    for read in (parse_json, parse_object, lambda text: parse_form(text, Form)):
        try:
            read(data)
        except BrokenJson:
            continue


def _as_text(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def _in_a_file(read):
    def reading(data: bytes, folder: Path) -> None:
        file = folder / "config.json"
        file.write_bytes(data)
        read(file)

    return reading


def _eval_results(data: bytes, folder: Path) -> None:
    from rlhf_plugin_inference.comparing.results import read_results

    (folder / "summary.json").write_bytes(data)
    (folder / "episodes.jsonl").write_text("")
    read_results(folder)


def _eval_episodes(file: Path) -> None:
    from rlhf_plugin_inference.evaluate.records import EpisodeRecord
    from rlhf_plugin_inference.worklist.record_lines import read_records

    list(read_records(file, EpisodeRecord))


def _completions(file: Path) -> None:
    from rlhf_plugin_inference.generate.records import AnsweredPrompt
    from rlhf_plugin_inference.worklist.record_lines import read_records

    list(read_records(file, AnsweredPrompt))


def _plan_shape(file: Path) -> None:
    from rlhf_plugin_plan.model.shapes import read_shape

    read_shape(file)


def _weight_index(data: bytes, folder: Path) -> None:
    from rlhf_torch.models.weight_files import weight_files

    (folder / "model.safetensors.index.json").write_bytes(data)
    weight_files(str(folder))


def _ledger(data: bytes, folder: Path) -> None:
    from rlhf_trainer.durable.records import _record

    try:
        _record(data)
    except ValueError:
        return


def _checkpoint(data: bytes, folder: Path) -> None:
    from rlhf_trainer.durable.checkpoint import _read_json

    (folder / "manifest.json").write_bytes(data)
    _read_json(folder / "manifest.json")


def _plugin_record(file: Path) -> None:
    from rlhf_trainer.durable.plugin_record import _read_history

    _read_history(file)


def _array_of_rows(file: Path) -> None:
    from rlhf_data.files.text_files import open_json

    open_json(file, "train")


def _served_request(data: bytes, folder: Path) -> None:
    from rlhf_plugin_reward_model.serving.protocol import BadRequest, read_request

    with suppress(BadRequest):
        read_request(data)


def _reward_answer(data: bytes, folder: Path) -> None:
    from rlhf_plugin_rewards.remote.protocol import BadAnswer, results_of

    with suppress(BadAnswer):
        results_of(data, 1)


def _chat_answer(data: bytes, folder: Path) -> None:
    from rlhf_plugin_inference.evaluate.remote.answers import UnreadableAnswer, read_answer

    with suppress(UnreadableAnswer):
        read_answer(data)


def _endpoint_body(data: bytes, folder: Path) -> None:
    from rlhf_plugin_endpoint.dialects.fields import read_object as read_body
    from rlhf_plugin_endpoint.dialects.problems import RequestProblem

    with suppress(RequestProblem):
        read_body(data)


def _tool_arguments(data: bytes, folder: Path) -> None:
    from rlhf_core.contracts import ToolCall
    from rlhf_plugin_agents.conversation import _call
    from rlhf_plugin_endpoint.dialects.anthropic_messages import call_input
    from rlhf_plugin_endpoint.dialects.chat_messages import written_call

    _call(ToolCall(id="1", name="f", arguments=_as_text(data)))
    call_input(_as_text(data))
    written_call("1", "f", _as_text(data))


def _traces(file: Path) -> None:
    from rlhf_episodes.traces import read_traces

    list(read_traces(file))


def _outcome(data: bytes, folder: Path) -> None:
    from rlhf_plugin_endpoint.agents.command import _last_line
    from rlhf_plugin_endpoint.agents.outcome import AgentFailure

    with suppress(AgentFailure):
        _last_line(data)


def _config_entries(file: Path) -> None:
    from rlhf_plugin_supervised.training.reward_models.config_entries import write_entries

    write_entries(file, {"mean": 0.0})


def _tokenizer_settings(data: bytes, folder: Path) -> None:
    from rlhf_data.tokenizer import load_tokenizer

    (folder / "tokenizer_config.json").write_bytes(data)
    load_tokenizer(str(folder))


def _typed_argument(data: bytes, folder: Path) -> None:
    from rlhf_data.chat.parsing.blocks import typed_value

    typed_value(_as_text(data), {"type": ["object", "array", "number", "integer"]})


READERS = {
    "a checkpoint's manifest": _checkpoint,
    "plugins.json": _in_a_file(_plugin_record),
    "a list of rows": _in_a_file(_array_of_rows),
    "serve-rm": _served_request,
    "the answer of a reward server": _reward_answer,
    "the answer of a chat server": _chat_answer,
    "a request to the endpoint": _endpoint_body,
    "a tool call's arguments": _tool_arguments,
    "an argument of a call": _typed_argument,
    "traces": _in_a_file(_traces),
    "an agent's last line": _outcome,
    "entries of a configuration": _in_a_file(_config_entries),
    "a tokenizer's settings": _tokenizer_settings,
    "steps of records": lambda data, _: step_of(data),
    "template variables": lambda data, _: typed(_as_text(data)),
    "the reader itself": _parsed,
    "a model's config.json": _in_a_file(lambda file: read_object(file, "an object")),
    "a model's config.json, for a choice": _in_a_file(lambda file: model_config(str(file.parent))),
    "data.tools_key": lambda data, _: tools_of({"tools": _as_text(data)}, "tools"),
    "chat_template_kwargs": lambda data, _: kwargs_of({"chat_template_kwargs": _as_text(data)}),
    "a conversation as text": lambda data, _: decoded({"messages": _as_text(data)}),
    "a row": lambda data, _: parse_row(data),
    "samples.jsonl": _in_a_file(lambda file: list(shown_samples(file))),
    "rlhf data template --tools": _in_a_file(_read_tools),
    "eval compare": _eval_results,
    "episodes.jsonl": _in_a_file(_eval_episodes),
    "completions.jsonl": _in_a_file(_completions),
    "plan": _in_a_file(_plan_shape),
    "an index of weights": _weight_index,
    "the ledger": _ledger,
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_fails_with_an_error_of_ours(reader, tmp_path):
    for data in (*BYTES, *(text + b"\n" for text in BYTES)):
        try:
            READERS[reader](data, tmp_path)
        except (RLHFError, RowProblem):
            continue


def test_the_message_names_file_and_reason(tmp_path):
    (tmp_path / "config.json").write_text("[1]")

    with pytest.raises(
        ConfigError, match=r"config\.json.*\[1\]", check=has_code("config/unreadable-file")
    ):
        read_object(tmp_path / "config.json", "a model's config.json")
