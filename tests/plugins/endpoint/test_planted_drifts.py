"""Drifts planted between what the policy wrote and what would train: the kit's comparison of tokens finds each."""

import unicodedata
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from rlhf_plugin_endpoint.conformance import report, run_scenarios
from rlhf_plugin_endpoint.conformance.adapter import CapturedRow
from rlhf_plugin_endpoint.conformance.chat_format import KitRenderer
from rlhf_plugin_endpoint.conformance.ours import OwnEndpoint
from rlhf_plugin_endpoint.conformance.scenarios import SCENARIOS
from rlhf_testing.fakes import EOS_ID

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
KIT = KitRenderer()


@dataclass(frozen=True)
class Cell:
    """One token of a captured row."""

    token: int
    logprob: float | None = None
    """None: it does not train."""
    version: int = 0

    @property
    def trains(self):
        return self.logprob is not None


def cells_of(row):
    numbers = iter(zip(row.logprobs, row.versions, strict=True))
    return [
        Cell(token, *next(numbers)) if trains else Cell(token)
        for token, trains in zip(row.token_ids, row.mask, strict=True)
    ]


def row_of(cells):
    trained = [cell for cell in cells if cell.trains]
    return CapturedRow(
        token_ids=tuple(cell.token for cell in cells),
        mask=tuple(cell.trains for cell in cells),
        logprobs=tuple(cell.logprob for cell in trained),
        versions=tuple(cell.version for cell in trained),
    )


class Altered:
    """Our endpoint, whose trace is altered before anybody sees it."""

    name, temperature = "altered", 1.0

    def __init__(self, alter):
        self._alter = alter

    @contextmanager
    def episode(self, policy):
        with OwnEndpoint().episode(policy) as episode:
            finish = episode.finish
            episode.finish = lambda: self._alter(finish())
            yield episode


def on_rows(change):
    """An alteration of all rows of a trace, as lists of cells."""

    def alter(trace):
        changed = change([cells_of(row) for row in trace.rows])
        return replace(trace, rows=tuple(map(row_of, changed)))

    return alter


def on_last(change):
    """An alteration of the last row."""
    return on_rows(lambda rows: [*rows[:-1], change(rows[-1])])


def on_cells(change):
    """An alteration of single cells, each of which becomes a list."""
    return on_rows(lambda rows: [[new for cell in row for new in change(cell)] for row in rows])


def runs(row):
    """First and last index, the latter excluded, of each run of trained cells."""
    edges = [index for index, cell in enumerate(row) if cell.trains != _trains(row, index - 1)]
    return list(zip(edges[::2], [*edges[1::2], len(row)], strict=False))


def _trains(row, index):
    return index >= 0 and row[index].trains


def spelled(text, like):
    """Cells of a text, which train as ``like`` does."""
    return [replace(like, token=token) for token in KIT.encode(text)]


def text_of(cells):
    return KIT.decode([cell.token for cell in cells], skip_special_tokens=False)


def rewritten(change):
    """An alteration in which the trained cells of each run are written anew from their text."""

    def alter(row):
        for start, end in reversed(runs(row)):
            written = [cell for cell in row[start:end] if cell.token != EOS_ID]
            rest = [cell for cell in row[start:end] if cell.token == EOS_ID]
            text = text_of(written)
            if change(text) != text or change is same_text:
                row = [*row[:start], *spelled(change(text), written[0]), *rest, *row[end:]]
        return row

    return on_rows(lambda rows: list(map(alter, rows)))


def same_text(text):
    return text


def unmasked(row, start, end):
    return [
        replace(cell, logprob=-0.5) if start <= index < end and not cell.trains else cell
        for index, cell in enumerate(row)
    ]


def masked(row, start, end):
    return [
        replace(cell, logprob=None) if start <= index < end else cell
        for index, cell in enumerate(row)
    ]


def joined_at_the_end(row):
    """The end of the first answer and the token behind it as one token, which trains."""
    end = runs(row)[0][1]
    return [*row[: end - 1], replace(row[end - 1], token=2_000_000), *row[end + 1 :]]


def logprobs_moved(by):
    def change(row):
        trained = [cell for cell in row if cell.trains]
        others = iter([*trained[by:], *trained[:by]])
        return [replace(c, logprob=next(others).logprob) if c.trains else c for c in row]

    return change


def spoken_by_the_other(rows):
    """The last answers of two rows change places."""
    first, second = rows
    (start, end), (begin, stop) = runs(first)[-1], runs(second)[-1]
    return [
        [*first[:start], *second[begin:stop], *first[end:]],
        [*second[:begin], *first[start:end], *second[stop:]],
    ]


def shared_answers_train_again(rows):
    first, second = rows
    length = next(
        index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a.token != b.token
    )
    return [first, [*first[:length], *second[length:]]]


def fork_a_token_late(rows):
    first, second = rows
    at = next(
        index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a.token != b.token
    )
    return [first, [*second[:at], replace(second[at], token=first[at].token), *second[at + 1 :]]]


def stale_history(rows):
    first, second = rows
    start, end = runs(second)[-1]
    return [first, [*masked(first, 0, len(first)), *second[start:end]]]


def place_of(row, text):
    """Index of the first cell of a text."""
    wanted = KIT.encode(text)
    tokens = [cell.token for cell in row]
    return next(at for at in range(len(row)) if tokens[at : at + len(wanted)] == wanted)


def results_swapped(row):
    """The first two results of tools change places."""
    row = list(row)
    first, second = place_of(row, "0 degrees"), place_of(row, "1 degrees")
    row[first], row[second] = row[second], row[first]
    return row


def words_as_tokens(row):
    """A control word that a user wrote is the control token."""
    at = place_of(row, "<eos>")
    return [*row[:at], Cell(EOS_ID), *row[at + len("<eos>") :]]


def last_run(change):
    return on_last(lambda row: change(row, *runs(row)[-1]))


PLANTED = {
    "an answer is tokenized again": ("other_encoding", rewritten(same_text)),
    "tokens are joined over the end of an answer": ("two_turns", on_last(joined_at_the_end)),
    "a thought is taken out of its answer": (
        "thoughts",
        rewritten(lambda text: text.partition("</think>")[2] or text),
    ),
    "white space around an answer is cut off": ("white_space", rewritten(str.strip)),
    "an answer is normalized": (
        "unicode",
        rewritten(lambda text: unicodedata.normalize("NFC", text)),
    ),
    "the arguments of a call are written anew": (
        "rewritten_arguments",
        rewritten(lambda text: text.replace(",  ", ", ")),
    ),
    "an answer ends before the client's stop string": (
        "stop_string",
        rewritten(lambda text: text.partition("two")[0]),
    ),
    "end-of-sequence is left out": (
        "two_turns",
        on_cells(lambda cell: [] if cell.trains and cell.token == EOS_ID else [cell]),
    ),
    "end-of-sequence is doubled": (
        "two_turns",
        on_cells(lambda cell: [cell] * (1 + (cell.trains and cell.token == EOS_ID))),
    ),
    "an answer that was cut gets an end": (
        "length",
        last_run(lambda row, start, end: [*row[:end], replace(row[end - 1], token=EOS_ID)]),
    ),
    "the first token is doubled": ("one_turn", on_last(lambda row: [row[0], *row])),
    "the first token is left out": ("one_turn", on_last(lambda row: row[1:])),
    "a token of the prompt is another one": (
        "one_turn",
        on_last(lambda row: [replace(row[0], token=row[0].token + 1), *row[1:]]),
    ),
    "a token of an answer is another one": (
        "one_turn",
        last_run(lambda row, start, end: [*row[:start], replace(row[start], token=1), *row[start + 1 :]]),
    ),
    "the mask begins a token early": (
        "two_turns",
        last_run(lambda row, start, end: unmasked(row, start - 1, start)),
    ),
    "the mask begins a token late": (
        "two_turns",
        last_run(lambda row, start, end: masked(row, start, start + 1)),
    ),
    "the mask ends a token late": (
        "two_turns",
        on_last(lambda row: unmasked(row, runs(row)[0][1], runs(row)[0][1] + 1)),
    ),
    "the mask ends a token early": (
        "two_turns",
        last_run(lambda row, start, end: masked(row, end - 1, end)),
    ),
    "the mask is shifted by a token": (
        "two_turns",
        on_last(lambda row: [replace(cell, token=other.token) for cell, other in zip(row[1:], row, strict=False)]),
    ),
    "an observation trains": (
        "tool_cycle",
        on_last(lambda row: unmasked(row, runs(row)[0][1], runs(row)[1][0])),
    ),
    "the prompt trains": ("one_turn", on_last(lambda row: unmasked(row, 1, runs(row)[0][0]))),
    "a call does not train": (
        "tool_cycle",
        on_last(lambda row: masked(row, *runs(row)[0])),
    ),
    "a malformed call does not train": (
        "malformed_call",
        last_run(lambda row, start, end: masked(row, start, end)),
    ),
    "an answer trains on both paths that hold it": (
        "two_continuations",
        on_rows(shared_answers_train_again),
    ),
    "a path is there twice": ("one_turn", on_rows(lambda rows: [*rows, rows[-1]])),
    "a path is missing": ("edited_history", on_rows(lambda rows: rows[:-1])),
    "the longest path trains alone": ("sub_agent", on_rows(lambda rows: [max(rows, key=len)])),
    "one of n answers trains": ("several_answers", on_rows(lambda rows: rows[:1])),
    "a retry counts again": (
        "idempotency_key",
        on_rows(lambda rows: [*rows, [replace(c, logprob=c.logprob and -9.0) for c in rows[0]]]),
    ),
    "a fork begins a token late": ("edited_history", on_rows(fork_a_token_late)),
    "an answer stands behind the history before its change": (
        "edited_history",
        on_rows(stale_history),
    ),
    "two replies change places": ("two_continuations", on_rows(spoken_by_the_other)),
    "a summary stands behind what it summarized": (
        "compaction",
        on_rows(lambda rows: [rows[0], [*masked(rows[0], 0, len(rows[0])), *rows[1]]]),
    ),
    "a summary does not train": (
        "compaction",
        on_rows(lambda rows: [masked(rows[0], *runs(rows[0])[-1]), *rows[1:]]),
    ),
    "the middle of a long path is cut out": (
        "many_turns",
        on_last(lambda row: [*row[:100], *row[150:]]),
    ),
    "results of parallel calls change places": ("shuffled_results", on_last(results_swapped)),
    "a user's control word is a control token": ("inert_words", on_last(words_as_tokens)),
    "log-probs are shifted by a token": ("two_turns", on_last(logprobs_moved(1))),
    "log-probs are another answer's": (
        "two_turns",
        on_last(lambda row: logprobs_moved(sum(cell.trains for cell in row) // 2)(row)),
    ),
    "log-probs are of another temperature": (
        "one_turn",
        on_cells(lambda cell: [replace(cell, logprob=cell.logprob and cell.logprob * 0.5)]),
    ),
    "log-probs are zeros": (
        "one_turn",
        on_cells(lambda cell: [replace(cell, logprob=0.0) if cell.trains else cell]),
    ),
    "all tokens are of the newest weights": (
        "two_turns",
        on_cells(lambda cell: [replace(cell, version=9)]),
    ),
    "an answer is of the weights that began it": (
        "one_turn",
        on_last(lambda row: [replace(cell, version=0) for cell in row]),
    ),
    "each turn is a path": (
        "two_turns",
        lambda trace: replace(trace, num_paths=trace.num_paths + 1),
    ),
}  # fmt: skip
"""Fault -> the scenario that finds it, and the alteration of its trace."""


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_drift_is_found(fault):
    scenario, alter = PLANTED[fault]
    endpoint = Altered(alter)

    results = run_scenarios(endpoint, [BY_NAME[scenario]])

    assert results[0].problem is not None
    assert (
        "does not train as it was sampled" in results[0].problem
        or "sampled by nobody" in (results[0].problem)
        or results[0].problem.startswith("expected 1 path(s), got 2")
    )
    assert "altered: 0 of 1 scenarios hold" in report(endpoint, results)


def test_without_the_comparison_of_tokens_no_drift_would_be_found(monkeypatch):
    """Nothing else in a scenario finds them: of each scenario one fault."""
    place = "rlhf_plugin_endpoint.conformance.scenarios.scene."
    monkeypatch.setattr(f"{place}check_exact", lambda trace, sampled: None)
    monkeypatch.setattr(f"{place}check_paths", lambda trace, count: None)

    for name, alter in dict(PLANTED.values()).items():
        (result,) = run_scenarios(Altered(alter), [BY_NAME[name]])
        assert result.problem is None


def test_versions_of_the_weights_are_compared_only_where_an_endpoint_records_them():
    def unrecorded(trace):
        return replace(trace, rows=tuple(replace(row, versions=None) for row in trace.rows))

    (result,) = run_scenarios(Altered(unrecorded), [BY_NAME["two_turns"]])

    assert result.problem is None


def test_a_control_word_that_the_policy_reads_as_a_token_is_found(monkeypatch):
    """What trains is what was read and sampled then, so only a look at what was read finds it."""

    class Loose(KitRenderer):
        def render(self, messages, tools=()):
            row = [Cell(token) for token in super().render(messages, tools)]
            if "<eos>" in str(messages[0]["content"]):
                row = words_as_tokens([*row, Cell(0, logprob=0.0)])[:-1]
            return [cell.token for cell in row]

    monkeypatch.setattr("rlhf_plugin_endpoint.conformance.ours.KitRenderer", Loose)

    (result,) = run_scenarios(OwnEndpoint(), [BY_NAME["inert_words"]])

    assert "a control word of the user's is a control token" in (result.problem or "")


def test_only_the_longest_path_fails_where_several_train():
    longest = on_rows(lambda rows: [max(rows, key=len)])
    wanted = ("swapped_system", "sub_agent", "compaction", "no_manifest", "thoughts")
    results = run_scenarios(Altered(longest), [BY_NAME[name] for name in wanted])

    assert [each.scenario.name for each in results if each.problem is None] == []


def test_at_least_25_drifts_are_planted():
    assert len(PLANTED) >= 25
