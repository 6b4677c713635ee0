"""``rlhf chat`` through a pipe and on a terminal (a pty)."""

from __future__ import annotations

import gc
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch
import transformers  # noqa: F401 - imported once, before the forks
from tests.deadlines import HANG_S
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.main import main
from rlhf_plugin_inference.chat import terminal

GREEDY = ["--rollout.temperature", "0", "--rollout.max_new_tokens", "8"]


@torch.inference_mode()
def naive_answer(folder, messages, limit=8):
    """The most probable tokens, each by a pass of the plain model over the whole conversation."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    start = len(tokens)
    while len(tokens) < start + limit and tokens[-1] != 2:
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokenizer.decode(tokens[start:], skip_special_tokens=True)


def through_a_pipe(base, text, *words):
    """Code, standard output and stderr of the command with ``text`` as its input, in a forked child."""
    names = ("in", "out", "err")
    files = [os.memfd_create(name) for name in names]
    os.write(files[0], text.encode())
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.lseek(files[0], 0, os.SEEK_SET)
            for number, file in enumerate(files):
                os.dup2(file, number)
            _use_own_streams()
            code = main(["chat", str(base), *words])
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    read = []
    for file in files[1:]:
        os.lseek(file, 0, os.SEEK_SET)
        with os.fdopen(file) as stream:
            read.append(stream.read())
    os.close(files[0])
    return code, *read


def _use_own_streams():
    """Undo pytest's capture, which a fork inherits, and never collect what earlier tests left.

    It may own threads that a fork does not have, and crash in its destructors.
    """
    gc.freeze()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))


def test_each_line_of_a_pipe_is_answered_within_one_conversation(base):
    code, out, _ = through_a_pipe(base, "hello\n\nand you?\n", *GREEDY, "--chat.system", "be brief")

    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    first = naive_answer(base, messages)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "and you?"}]
    assert code == 0
    assert out == f"{first}\n{naive_answer(base, messages)}\n"


def test_commands_work_in_a_pipe_and_stay_out_of_the_answers(base, tmp_path):
    path = tmp_path / "chats.jsonl"
    text = f"hello\n/reset\nhello\n/retry\n/save {path}\n/sampling max_new_tokens=3\nhello\n/exit\nunread\n"

    code, out, err = through_a_pipe(base, text, *GREEDY)

    answer = naive_answer(base, [{"role": "user", "content": "hello"}])
    (row,) = map(json.loads, path.read_text().splitlines())
    assert row["messages"] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answer},
    ]
    assert code == 0
    assert out.startswith(f"{answer}\n" * 3), "the first, the one after the reset, and its retry"
    assert "max_new_tokens=3" in err


def test_a_message_of_several_lines_is_one_message(base):
    _, out, _ = through_a_pipe(base, '"""\na\nb\n"""\n', *GREEDY)

    assert out == naive_answer(base, [{"role": "user", "content": "a\nb"}]) + "\n"


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("/nothing\n", [], "/nothing: there is no such command"),
        ("hello\n", ["--chat.max_length", "21"], "leaves no room for an answer"),
    ],
)
def test_an_error_ends_a_pipe(base, text, words, said):
    code, out, err = through_a_pipe(base, text, *GREEDY, *words)

    assert code != 0
    assert out == ""
    assert said in err


class Session:
    """``rlhf chat`` in a forked child with a terminal of its own."""

    def __init__(self, base, *words):
        self.seen = ""
        self._read_to = 0
        self._child, self._terminal = pty.fork()
        if self._child == 0:
            code = 70
            try:
                os.environ["TERM"] = "dumb"
                _use_own_streams()
                code = main(["chat", str(base), *words])
            finally:
                os._exit(code)

    def type(self, text):
        os.write(self._terminal, text.encode())

    def expect(self, text):
        """Wait until ``text`` appears behind what was expected before."""
        self._read_until(lambda new: text in new)
        self._read_to = self.seen.index(text, self._read_to) + len(text)

    def expect_characters(self, count):
        """Wait until so many characters appear behind what was expected before."""
        self._read_until(lambda new: len(new) >= count)

    def press_until(self, key, text):
        """Press a key until ``text`` appears. A signal between the prompt and readline's wait for a key is noticed at
        the next key only."""
        give_up = time.monotonic() + HANG_S
        while text not in self.seen[self._read_to :]:
            assert time.monotonic() < give_up, self.seen
            self.type(key)
            again = time.monotonic() + 2.0
            while text not in self.seen[self._read_to :] and time.monotonic() < again:
                self._read_for(0.2)
        self.expect(text)

    def _read_for(self, seconds):
        if select.select([self._terminal], [], [], seconds)[0]:
            self.seen += os.read(self._terminal, 4096).decode(errors="replace")

    def _read_until(self, is_enough):
        give_up = time.monotonic() + HANG_S
        while not is_enough(self.seen[self._read_to :]):
            assert time.monotonic() < give_up, self.seen
            self._read_for(0.2)

    def end(self):
        """Type Ctrl-D at the prompt until the program ends, and return the exit code. A key that comes before the
        prompt, or at which an earlier signal is noticed, is lost."""
        self.expect("> ")
        give_up, again = time.monotonic() + HANG_S, 0.0
        while not (ended := os.waitpid(self._child, os.WNOHANG))[0]:
            if time.monotonic() > give_up:
                os.kill(self._child, signal.SIGKILL)
            with suppress(OSError):  # The terminal of a process that has ended.
                if time.monotonic() > again:
                    self.type("\x04")
                    again = time.monotonic() + 2.0
                self._read_for(0.05)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(ended[1])


def test_a_conversation_on_a_terminal(base):
    session = Session(base, *GREEDY)
    session.expect("/help lists commands")
    session.expect("> ")
    session.type("hello\n")
    answer = naive_answer(base, [{"role": "user", "content": "hello"}])
    session.expect("hello\r\n")
    session.expect(answer.replace("\n", "\r\n"))
    session.expect("> ")
    session.type("/nothing\n")
    session.expect("error: /nothing: there is no such command")
    session.expect("> ")
    session.type('"""\na\nb\n"""\n')

    assert session.end() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(base, tmp_path, monkeypatch):
    """The answer would have 900 tokens, in as many pieces, which take longer than a hang."""
    path, show = tmp_path / "chats.jsonl", terminal.Terminal.show

    def show_slowly(self, piece):
        show(self, piece)
        time.sleep(2 * HANG_S / 900)

    monkeypatch.setattr(terminal.Terminal, "show", show_slowly)
    long = ["--rollout.min_new_tokens", "900", "--rollout.max_new_tokens", "900"]
    session = Session(base, *long, "--chat.stream_tokens", "1", "--seed", "5")
    session.expect("> ")
    session.type("hello\n")
    session.expect("hello\r\n")
    session.expect_characters(8)
    session.type("\x03")
    session.expect("(stopped)")
    session.expect("> ")
    session.press_until("\x03", "Ctrl-D ends the program.")
    session.expect("> ")
    session.type(f"/save {path}\n")
    session.expect("saved: ")

    assert session.end() == 0
    (row,) = map(json.loads, path.read_text().splitlines())
    question, answer = row["messages"]
    assert question == {"role": "user", "content": "hello"}
    assert 0 < len(answer["content"]) < 900


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "--model"),
        (["nowhere/at/all"], "there is no such folder"),
        (["{base}", "--rollout.top_p", "2"], "--rollout.top_p"),
        (["{base}", "--engine", "nothing"], "nothing"),
        (["{base}", "--dry-run"], "Use --check"),
        (["{base}", "--data", "x.jsonl"], "--data"),
        (["{base}", "--model.adapter", "nowhere"], "there is no such folder"),
    ],
)
def test_bad_input_is_exit_code_two_with_a_message(base, capsys, words, text):
    assert main(["chat", *(word.format(base=base) for word in words)]) == 2
    assert text in capsys.readouterr().err


def test_a_model_without_a_chat_template_is_refused(base, tmp_path, capsys):
    for file in base.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())

    assert main(["chat", str(tmp_path)]) == 2
    assert "its tokenizer has no chat template" in capsys.readouterr().err


def test_check_loads_nothing_and_help_imports_no_torch(base, capsys):
    assert main(["chat", str(base), "--check"]) == 0
    assert "The configuration is valid." in capsys.readouterr().out
    code = (
        "import sys; from rlhf_cli.main import main; main(['chat', '--help']);"
        "main(['generate', '--help']); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert "--chat.stream_tokens" in done.stdout
    assert "--select.mode" in done.stdout
    assert done.stdout.rstrip().endswith("False")
