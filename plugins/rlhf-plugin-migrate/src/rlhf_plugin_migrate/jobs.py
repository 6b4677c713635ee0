"""Runs of other frameworks that are found in the input, each with the way in which it is migrated."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlhf_core import ConfigError

from .document import MigrationReport, report_of
from .migration import Migrate
from .openrlhf import programs
from .prime_rl import programs as prime_rl
from .shell.launchers import Launch, launch_of, launches_of
from .shell.script import ShellCommand
from .shell.unresolved import advice_on, remarks_on_script
from .skyrl import programs as skyrl
from .table.outcome import Outcome
from .table.source import Written
from .trl import scripts
from .trl.launched import refusal_of, trl_launch_of, yaml_of
from .trl.notebook import code_of
from .trl.python_script import read_script
from .verl import programs as verl

STDIN = "-"
_PYTHON = (".py", ".ipynb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of another framework that is to be migrated."""

    migrate: Migrate
    origin: str
    framework: str


@dataclass(slots=True)
class Jobs:
    """Everything that was found in the input."""

    runs: list[Job] = field(default_factory=list)
    """Runs that become configurations."""
    commands: list[tuple[str, MigrationReport]] = field(default_factory=list)
    """Command lines that replace a program, with their reports."""
    refused: list[str] = field(default_factory=list)
    """A message for each program without a counterpart."""
    remarks: list[str] = field(default_factory=list)
    """Lines on what else is in the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reader of the launches of a framework."""

    framework: str
    launch_of: Callable[[ShellCommand], Launch | None]
    refusal_of: Callable[[Launch], str] = lambda launch: ""
    """Reason for which a launch is not migrated; empty if it is."""
    launched: Callable[[Launch, int | None, str], Outcome]
    """Configuration of a launch, from the number of processes and the adapter's path."""


_READERS = (
    _Reader(
        framework="verl",
        launch_of=verl.verl_launch_of,
        refusal_of=verl.refusal_of,
        launched=verl.launched,
    ),
    _Reader(
        framework="SkyRL",
        launch_of=skyrl.skyrl_launch_of,
        refusal_of=skyrl.refusal_of,
        launched=lambda launch, processes, adapter: skyrl.launched(launch, adapter),
    ),
    _Reader(
        framework="prime-rl",
        launch_of=prime_rl.prime_rl_launch_of,
        launched=lambda launch, processes, adapter: prime_rl.launched(launch, read_text),
    ),
)


def _nothing_to_migrate(found: Sequence[ShellCommand], name: str) -> ConfigError:
    return ConfigError(
        "rlhf migrate: expected a command of OpenRLHF (openrlhf.cli.NAME, such as python3 -m "
        "openrlhf.cli.train_ppo_ray), one of TRL (trl grpo, sft or dpo, or their scripts, such as accelerate "
        "launch grpo.py), one of verl (python3 -m verl.trainer.main_ppo), one of SkyRL (python -m "
        "skyrl.train.entrypoints.main_base) or one of prime-rl (uv run rl @ rl.toml); there is none among the "
        f"{len(found)} commands of {name}{_read_elsewhere(found)}. For other programs, write the configuration by "
        "hand: docs/configuration.md",
        code="migrate/no-training-command",
    )


def _openrlhf_jobs(
    found: Sequence[ShellCommand], launches: Sequence[Launch], name: str, processes: int | None
) -> Jobs:
    jobs = Jobs(remarks=list(_remarks(found)))
    for each in launches:
        launch = replace(each, processes=each.processes or processes)
        origin = f"{launch.program} of OpenRLHF, {name}, line {launch.line}"
        answer = programs.answer(launch)
        if isinstance(answer, str):
            jobs.refused.append(answer)
        elif isinstance(answer, programs.CommandLine):
            jobs.commands.append((answer.text, report_of(answer.outcome, origin)))
        else:
            migrate = functools.partial(answer, launch)
            jobs.runs.append(Job(migrate=migrate, origin=origin, framework="OpenRLHF"))
    return jobs


def _read_elsewhere(found: Sequence[ShellCommand]) -> str:
    """Return which scripts the commands read, where a command may be; nothing if they read none."""
    reads = [each for each in found if each.words[0] in ("source", ".") and len(each.words) > 1]
    if not reads:
        return ""
    listed = ", ".join(f"{each.words[1]} (line {each.line})" for each in reads)
    return f". It reads {listed}, which is not opened: migrate that script"


def _remarks(found: Sequence[ShellCommand]) -> Iterator[str]:
    """Yield a line for flags that bash passes to nobody, and one that names all commands that start no training."""
    others = [one for one in found if not _starts(one)]
    for command in others:
        if command.words[0].startswith("--"):
            yield (
                f"warning: line {command.line}: {' '.join(command.words)} belongs to no command: a comment or a "
                "missing backslash ends the command before it, for bash as well"
            )
    yield from remarks_on_script(found)
    names = dict.fromkeys(
        command.words[0]
        for command in others
        if command.words[0] != ":" and not command.words[0].startswith("--")
    )
    if names:
        yield f"not looked at: {', '.join(names)}"


def jobs_of(found: Sequence[ShellCommand], name: str, processes: int | None) -> Jobs:
    """Return the programs of OpenRLHF that commands start; where they start none, those of verl, SkyRL or prime-rl, or
    scripts of TRL.

    Args:
        name: the input, in words.
        processes: number of processes that a launcher starts that does not say it.

    Raises:
        ConfigError: they start none.
    """
    if launches := launches_of(found):
        return _openrlhf_jobs(found, launches, name, processes)
    for reader in _READERS:
        if launches := list(filter(None, map(reader.launch_of, found))):
            return _jobs_of_reader(found, reader, launches, name, processes)
    launches = list(filter(None, map(trl_launch_of, found)))
    if not launches:
        raise _nothing_to_migrate(found, name)
    jobs = Jobs(remarks=list(_remarks(found)))
    for launch in launches:
        if launch.program not in scripts.SCRIPTS:
            jobs.refused.append(refusal_of(launch.program))
            continue
        origin = f"{name}, line {launch.line}"
        number = launch.processes or processes or 1
        text = yaml_of(launch, read_text)
        left_out = [Written(part, (), advice_on(part)) for part in launch.unresolved]
        jobs.runs.append(_trl_job(text, origin, launch.program, number, left_out))
    return jobs


def is_launch(line: ShellCommand) -> bool:
    """Return True for the launch of a program; else the first word is a file, and the words behind it flags of this
    command."""
    is_file = bool(line.words) and Path(line.words[0]).is_file()
    return launch_of(line) is not None or (not is_file and _starts(line))


def _starts(line: ShellCommand) -> bool:
    readers = (launch_of, trl_launch_of, *(reader.launch_of for reader in _READERS))
    return any(launch(line) for launch in readers)


def _jobs_of_reader(
    found: Sequence[ShellCommand],
    reader: _Reader,
    launches: Sequence[Launch],
    name: str,
    processes: int | None,
) -> Jobs:
    jobs = Jobs(remarks=list(_remarks(found)))
    for launch in launches:
        if refusal := reader.refusal_of(launch):
            jobs.refused.append(refusal)
            continue
        origin = f"{launch.title} of {reader.framework}, {name}, line {launch.line}"
        migrate = functools.partial(reader.launched, launch, processes)
        jobs.runs.append(Job(migrate=migrate, origin=origin, framework=reader.framework))
    return jobs


def verl_file(path: str, processes: int | None) -> Jobs:
    """Return the run of a YAML file that hydra wrote for verl."""
    text = read_text(path)

    def migrate(adapter: str) -> Outcome:
        program, source = verl.program_of_text(text, path)
        outcome = verl.migrate(program, source, processes, adapter)
        outcome.warnings += [warning] if (warning := verl.left_out(text)) else []
        return outcome

    program, _ = verl.program_of_text(text, path)
    return Jobs(runs=[Job(migrate=migrate, origin=f"{program} of verl, {path}", framework="verl")])


def prime_rl_job(path: str) -> Jobs:
    """Return the run of a TOML file of prime-rl."""
    pairs = prime_rl.pairs_of_toml(read_text(path), path)
    program = prime_rl.program_of(pairs, path)
    job = Job(
        migrate=lambda adapter: prime_rl.migrate(pairs, program),
        origin=f"{program} of prime-rl, {path}",
        framework="prime-rl",
    )
    return Jobs(runs=[job])


def trl_jobs(path: str, name: str | None, processes: int) -> Jobs:
    """Return the run of a YAML file or a Python script of TRL; the arguments are the command's flags."""
    text = read_text(path)
    if Path(path).suffix not in _PYTHON:
        return Jobs(runs=[_trl_job(text, path, name or scripts.script_of(text, path), processes)])
    text = code_of(text, path) if Path(path).suffix == ".ipynb" else text
    found = read_script(text, path, name)
    job = _trl_job(found.text, path, found.script, processes, found.left_out)
    return Jobs(
        runs=[replace(job, migrate=functools.partial(_with_files, job.migrate, found.files))]
    )


def _with_files(migrate: Migrate, files: Mapping[str, str], adapter: str) -> Outcome:
    """Return an outcome with modules of functions that a script defines itself, beside the file that calls them."""
    outcome = migrate(adapter)
    for name, text in files.items():
        outcome.files[str(Path(adapter).with_name(name))] = text
        outcome.differs("reward_funcs", f"{name} has a copy of the script's functions")
    return outcome


def _trl_job(
    text: str, origin: str, name: str, processes: int, left_out: Sequence[Written] = ()
) -> Job:
    """Return the job of the text of a YAML file for one of TRL's scripts.

    Args:
        left_out: what else is in the input, with the reason why it sets nothing.
    """
    script = scripts.SCRIPTS[name]
    source = script.read(text, origin)
    source.written = (*source.written, *left_out)
    return Job(
        migrate=functools.partial(script.migrate, source, processes),
        origin=f"{script.title} of TRL, {origin}",
        framework="TRL",
    )


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return sys.stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"rlhf migrate: cannot read {path}: {error.strerror}", code="config/unreadable-file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"rlhf migrate: {path}: expected text in UTF-8", code="config/malformed-file"
        ) from error
