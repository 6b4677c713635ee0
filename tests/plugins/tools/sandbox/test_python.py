"""Programs of a hostile policy: what they may do, what they may not, and that nothing of them is left."""

import asyncio
import gc
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from tests.deadlines import HANG_S, PATIENT_S

from rlhf_core import RolloutError
from rlhf_core.contracts import ToolCall
from rlhf_testing.errors import has_code
from rlhf_tools import Toolbox
from rlhf_tools.sandbox import python as module
from rlhf_tools.sandbox.inside import calls, files
from rlhf_tools.sandbox.limits import SandboxLimits
from rlhf_tools.sandbox.python import PythonSandbox, python_tool

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
    pytest.mark.skipif(files.version() == 0 or not calls.known(), reason="no Landlock or seccomp"),
]


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A supervisor has the time of a hang to report."""
    monkeypatch.setattr(module, "_GRACE_S", HANG_S)


# Only a test of the clock itself may be ended by the clock.
PATIENT = {"wall_s": HANG_S}


def run(code, **limits):
    return asyncio.run(PythonSandbox(SandboxLimits(**{**PATIENT, **limits})).run(code))


def ask(code, **limits):
    tools = Toolbox([python_tool(SandboxLimits(**{**PATIENT, **limits}))])
    call = ToolCall(name="python", arguments=module.json.dumps({"code": code}))
    return asyncio.run(tools.call(call, timeout_s=PATIENT_S))


def processes_with(mark):
    """Processes of this machine with a text in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_program_gives_its_output():
    result = ask("import math, sys\nprint(math.factorial(20))\nprint('too', file=sys.stderr)")

    assert result.failure is None
    assert sorted(result.text.split()) == ["2432902008176640000", "too"]


def test_an_error_of_the_program_is_told_with_its_own_lines_alone():
    result = ask("def f():\n    return 1 / 0\nprint('before')\nf()")

    assert result.failure == "failed"
    assert result.text.startswith("before\nTraceback")
    assert "ZeroDivisionError" in result.text
    assert 'File "<stdin>", line 2' in result.text
    assert "rlhf" not in result.text
    assert result.text.endswith("error (failed): exit status 1")


def test_equal_programs_print_equal_texts():
    code = "print({'a', 'b', 'c', 'd', 'e', 'f'}, hash('x'))"

    assert ask(code) == ask(code)


def test_it_begins_in_an_empty_folder_without_environment_or_input(monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    code = "import os, sys\nprint(os.listdir('.'), sorted(os.environ), sys.stdin.read())"

    assert ask(code).text.split() == ["[]", "['LC_CTYPE',", "'PYTHONHASHSEED']"]


def test_its_folder_can_be_written_and_is_gone_afterwards():
    code = (
        "import os\nos.makedirs('a/b')\nopen('a/b/f', 'w').write('x')\nprint(os.getcwd())\n"
        "os.chmod('a/b', 0)\nos.chmod('a', 0)\nos.symlink('/etc', 'link')"
    )
    folder = Path(ask(code).text.strip())

    assert folder.name.startswith("rlhf-sandbox-")
    assert not folder.exists()
    assert Path("/etc").is_dir()


@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd')",
        "import os; os.listdir('/')",
        f"import os; os.listdir({tempfile.gettempdir()!r})",
        f"open({__file__!r})",
        "open('/proc/self/environ')",
        "open('/proc/TESTS/environ')",
        f"open({tempfile.gettempdir() + '/planted'!r}, 'w')",
        "import os; open(os.__file__, 'a')",
        "import os; os.mkdir('/dev/shm/planted')",
        "import os; os.link('/etc/passwd', 'mine')",
        "import socket; socket.socket()",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "import os; os.fork()",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.setuid(12345)",
        "import os; os.kill(TESTS, 0)",
        "import os; os.kill(os.getppid(), 9); raise PermissionError('nothing happened')",
        "import ctypes, os; r = ctypes.CDLL(None, use_errno=True).unshare(0x10000000); "
        "raise PermissionError(r) if r else SystemExit(0)",
    ],
)
def test_what_is_not_its_own_is_refused(code):
    result = ask(code.replace("TESTS", str(os.getpid())))

    assert result.failure == "failed"
    assert re.search(r"^(PermissionError|ProcessLookupError|OSError)\b", result.text, re.M), (
        result.text
    )
    assert not Path(tempfile.gettempdir(), "planted").exists()


def test_threads_and_event_loops_work():
    code = (
        "import asyncio, threading\nt = threading.Thread(target=print, args=('thread',))\nt.start()\nt.join()\n"
        "asyncio.run(asyncio.sleep(0))\nprint('loop')"
    )

    assert ask(code).text.split() == ["thread", "loop"]


def test_packages_are_hidden_unless_they_are_asked_for():
    assert "ModuleNotFoundError" in ask("import pydantic").text
    seen = ask("import pydantic; print(pydantic.__name__)", packages=True, memory_mib=2048)
    assert seen.text.strip() == "pydantic"


def test_the_clock_ends_a_program_and_its_output_stays():
    result = ask("print('begun', flush=True)\nimport time\ntime.sleep(10**6)", wall_s=1.0)

    assert result.failure == "timeout"
    assert result.text in (
        "begun\nerror (timeout): killed after 1 s",
        "error (timeout): killed after 1 s",
    )


def test_a_program_that_computes_for_too_long_is_killed():
    result = ask("while True: pass", cpu_s=1)

    assert result.failure == "limit"
    assert "computation" in result.text


def test_a_program_that_takes_too_much_memory_fails():
    result = ask("x = bytearray(10**9)", memory_mib=128)

    assert result.failure == "failed"
    assert "MemoryError" in result.text


def test_a_file_cannot_be_larger_than_allowed():
    assert "File too large" in ask("open('f', 'wb').write(bytes(3 << 20))", file_mib=1).text


def test_open_files_are_limited():
    code = "import os\nfiles = [os.open('/dev/null', os.O_RDONLY) for _ in range(100)]"

    assert "Too many open files" in ask(code, open_files=20).text


def test_endless_output_is_cut_and_the_program_killed():
    result = ask("while True: print('y' * 1000)", output_chars=5000)

    assert result.failure == "limit"
    assert result.text.endswith("error (limit): output cut off after 5000 characters")
    assert 5000 < len(result.text) < 5100


def test_output_that_nobody_reads_holds_up_no_end():
    async def flood():
        sandbox = PythonSandbox(SandboxLimits(**PATIENT, output_chars=1))
        code = "import os\nwhile True: os.write(1, bytes(1 << 20))"
        return await asyncio.gather(*(sandbox.run(code) for _ in range(8)))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ended = asyncio.run(flood())
        gc.collect()

    assert {program.why for program in ended} == {"output"}
    assert not [str(one.message) for one in seen]


def test_output_that_is_no_text_is_replaced():
    assert ask("import sys; sys.stdout.buffer.write(b'a\\xff\\x00b')").text == "a�\x00b"


FAMILY = """
import os, sys, time
def child(depth):
    if os.fork() == 0:
        os.setsid()
        if depth:
            child(depth - 1)
        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(10**6)', {mark!r}])
child(2)
child(2)
print('begun', flush=True)
{end}
"""


@pytest.fixture
def _several_processes():
    try:
        run("", processes=20)
    except RolloutError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_several_processes")
@pytest.mark.parametrize("end", ["", "time.sleep(10**6)", "os._exit(3)"])
def test_children_that_left_the_session_end_with_the_program(end):
    """Six processes, each in a session of its own, all of them orphans but two."""
    mark = f"family-{os.getpid()}-{time.monotonic_ns()}"
    # The program has to come to its end before the clock does, on a busy machine, too.
    for seconds in (2.0, HANG_S / 10) if "sleep" in end else (HANG_S,):
        program = run(FAMILY.format(mark=mark, end=end), processes=20, wall_s=seconds)
        if program.output:
            break

    assert program.output == "begun\n"
    assert program.why == ("clock" if "sleep" in end else "itself")
    assert processes_with(mark) == []


@pytest.mark.usefixtures("_several_processes")
def test_more_processes_than_allowed_are_refused_or_end_the_program():
    code = (
        "import os, time\nfor n in range(1000):\n    try:\n        if os.fork() == 0:\n            time.sleep(10**6)\n"
        "    except OSError:\n        break\nif n == 999:\n    print('a thousand')\ntime.sleep(1)"
    )
    program = run(code, processes=10)

    assert program.why == "processes" or program.status == 0
    assert program.output == ""


def test_a_program_ends_with_the_process_that_waits_for_it(tmp_path):
    """Also when that is killed and can clean up nothing."""
    mark = f"orphan-{os.getpid()}-{time.monotonic_ns()}"
    code = (
        f"# {mark}\nimport time\nprint('begun', flush=True)\nopen('begun', 'w')\ntime.sleep(10**6)"
    )
    script = (
        "import asyncio\nfrom rlhf_tools.sandbox.limits import SandboxLimits\n"
        "from rlhf_tools.sandbox.python import PythonSandbox\n"
        f"asyncio.run(PythonSandbox(SandboxLimits(wall_s={HANG_S})).run({code!r}))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as waiting:
        deadline = time.monotonic() + HANG_S
        while not list(tmp_path.glob("rlhf-sandbox-*/begun")):
            assert time.monotonic() < deadline
            assert waiting.poll() is None
            time.sleep(0.01)
        (folder,) = tmp_path.glob("rlhf-sandbox-*")
        assert processes_in(folder)
        waiting.kill()
    while processes_in(folder) or folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def processes_in(folder):
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink() == folder:
                found.append(link)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_a_cancelled_episode_leaves_no_process_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def episode():
        task = asyncio.create_task(
            PythonSandbox(SandboxLimits(**PATIENT)).run("open('begun', 'w')\nwhile 1: pass")
        )
        async with asyncio.timeout(HANG_S):
            while not list(tmp_path.glob("*/begun")):
                await asyncio.sleep(0.01)
        (folder,) = tmp_path.iterdir()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return folder

    folder = asyncio.run(episode())
    assert list(tmp_path.iterdir()) == []
    assert processes_in(folder) == []


def test_no_more_programs_run_at_once_than_allowed():
    async def play():
        tools = Toolbox([python_tool(SandboxLimits(**PATIENT, concurrency=2))])
        call = ToolCall(name="python", arguments='{"code": "print(1)"}')
        return await asyncio.gather(*(tools.call(call, timeout_s=PATIENT_S) for _ in range(6)))

    assert [result.text for result in asyncio.run(play())] == ["1\n"] * 6


def test_a_guard_that_this_machine_lacks_is_an_error_not_a_risk(monkeypatch):
    answer = b'{"missing": ["files"]}\n'

    with pytest.raises(
        RolloutError,
        match=r"cannot guard files .* take files out of the sandbox's `require`",
        check=has_code("sandbox/unavailable"),
    ):
        module._report(answer)


def test_a_sandbox_that_cannot_be_built_says_what_happened():
    with pytest.raises(
        RolloutError, match="it said: OSError: no", check=has_code("sandbox/failed")
    ):
        module._report(b'{"broken": "OSError: no"}\n{"why": "itself", "status": 125}\n')
    with pytest.raises(
        RolloutError, match="it said: Fatal Python error", check=has_code("sandbox/failed")
    ):
        module._report(b"Fatal Python error")


def test_guards_are_reported():
    assert run("").guards["network"]
    assert run("").guards["files"]


@pytest.mark.parametrize("arguments", ["{}", '{"code": 1}', '{"code": "1", "more": 2}'])
def test_arguments_other_than_code_are_refused(arguments):
    tools = Toolbox([python_tool()])
    result = asyncio.run(tools.call(ToolCall(name="python", arguments=arguments), timeout_s=60))

    assert result.failure == "invalid_arguments"
