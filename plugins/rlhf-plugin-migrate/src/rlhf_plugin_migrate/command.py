"""The command ``rlhf migrate``: it reads the input, writes the configurations and prints the reports."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlhf_config import FlagParser
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader

from .document import MigrationReport, report_of
from .migration import Migrate, Migration, migrated
from .openrlhf import programs
from .shell.launchers import Launch, launch_of, launches_of
from .shell.script import ShellCommand, commands
from .shell.unresolved import advice_on, remarks_on_script, remarks_on_values
from .table.outcome import Outcome
from .table.source import Written
from .trl import scripts
from .trl.launched import refusal_of, trl_launch_of, yaml_of
from .trl.python_script import read_script
from .verl import programs as verl

_STDIN = "-"
_SHELL = frozenset({".sh", ".bash", ".slurm", ".sbatch"})
"""Suffixes of shell scripts, of which those of TRL's users are told apart from YAML files."""


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


def parser() -> FlagParser:
    """Return the parser of the command's flags."""
    own = FlagParser(
        prog="rlhf migrate",
        description="Turn a launch of OpenRLHF, TRL or verl into a configuration for rlhf train, sft, rm or dpo, and "
        "report what became of each of its options. The command runs nothing of the input.",
        usage="rlhf migrate [OPTIONS] FILE\n"
        "       rlhf migrate [OPTIONS] -- python3 -m openrlhf.cli.train_ppo_ray ...\n"
        "       rlhf migrate [OPTIONS] -- trl grpo ...\n"
        "       rlhf migrate [OPTIONS] -- python3 -m verl.trainer.main_ppo ...",
    )
    own.add_argument(
        "input",
        nargs=argparse.REMAINDER,
        help="shell script with commands of OpenRLHF, TRL or verl, YAML file or Python script of TRL, YAML file that "
        f"hydra wrote for verl; {_STDIN}: standard input; or a whole command line behind --",
    )
    own.add_argument(
        "--from",
        dest="framework",
        choices=("openrlhf", "trl", "verl"),
        default="openrlhf",
        help="framework of the input (default openrlhf)",
    )
    own.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="TOML file to write, which must not exist; unset: standard output. Several commands become "
        "NAME-1.toml, NAME-2.toml",
    )
    own.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="value of a shell variable, whatever the script assigns to it",
    )
    own.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="number of processes that accelerate or deepspeed starts, if the input does not say it (default "
        "1)",
    )
    own.add_argument(
        "--script",
        choices=tuple(scripts.SCRIPTS),
        help="TRL: script that the YAML file is for, if its keys do not say it",
    )
    own.add_argument(
        "--strict", action="store_true", help="exit with 1 if anything has no equivalent"
    )
    return own


def main(arguments: Sequence[str]) -> int:
    """Write the configurations and return the exit code.

    The code is 0; 1 if a configuration would be refused or, with ``--strict``, if something has no equivalent; 2 if a
    program has no table.

    Raises:
        ConfigError: a flag is wrong, or the input cannot be read or has no command of OpenRLHF, TRL or verl.
    """
    own = parser().parse_args(list(arguments))
    line, variables = ShellCommand(tuple(own.input), line=1), _variables(own.set)
    is_launch = launch_of(line) is not None or _launches_other(line)
    if not is_launch and own.input[1:]:
        # Everything from the file's name on: flags may follow it.
        own = parser().parse_args([*own.input[1:], own.input[0]], own)
        variables = _variables(own.set)
    if not own.input:
        raise ConfigError(
            "rlhf migrate: expected a file, - for standard input, or a command line behind --; got nothing",
            code="migrate/no-input",
        )
    if own.processes is not None and own.processes < 1:
        raise ConfigError(
            f"--processes {own.processes}: expected 1 or more", code="usage/not-positive"
        )
    if is_launch:
        jobs = _jobs_of([line], "the command line", own.processes)
    elif len(own.input) > 1:
        raise ConfigError(
            "rlhf migrate: expected one file, or a command line of OpenRLHF, TRL or verl, such as python3 -m "
            "openrlhf.cli.train_ppo_ray, trl grpo or python3 -m verl.trainer.main_ppo; got "
            f"{' '.join(line.words)}",
            code="migrate/several-files",
        )
    elif own.framework == "trl" and Path(own.input[0]).suffix not in _SHELL:
        jobs = _trl_jobs(own.input[0], own.script, own.processes or 1)
    elif own.framework == "verl" and Path(own.input[0]).suffix not in _SHELL:
        jobs = _verl_file(own.input[0], own.processes)
    else:
        jobs = _jobs_of(_script(own.input[0], variables), own.input[0], own.processes)
    outputs = _outputs(own.output, len(jobs.runs))
    plugins = plugin_loader.load()
    done = [
        migrated(job.migrate, _adapter(output), job.origin, job.framework, plugins)
        for job, output in zip(jobs.runs, outputs, strict=True)
    ]
    _write(done, outputs)
    for text, report in jobs.commands:
        print(text)
        print("\n".join(report.lines()), file=sys.stderr)
    for remark in jobs.remarks:
        print(remark, file=sys.stderr)
    for message in jobs.refused:
        print(f"error: {message}", file=sys.stderr)
    if jobs.refused:
        return 2
    reports = [each.report for each in done] + [report for _, report in jobs.commands]
    incomplete = own.strict and not all(report.is_complete for report in reports)
    return int(incomplete or any(report.refusal for report in reports))


def _script(path: str, variables: dict[str, str]) -> list[ShellCommand]:
    folder = Path.cwd() if path == _STDIN else Path(os.path.abspath(path)).parent
    text = _read(path)
    for remark in remarks_on_values(variables, text):
        print(remark, file=sys.stderr)
    return commands(text, variables, folder)


def _openrlhf_jobs(found: Sequence[ShellCommand], name: str, processes: int | None) -> Jobs:
    """Return the programs of OpenRLHF that commands start.

    Args:
        name: the input, in words.
        processes: number of processes that a launcher starts that does not say it.
    """
    launches = launches_of(found)
    if not launches:
        raise ConfigError(
            "rlhf migrate: expected a command of OpenRLHF (openrlhf.cli.NAME, such as python3 -m "
            "openrlhf.cli.train_ppo_ray), one of TRL (trl grpo, sft or dpo, or their scripts, such as accelerate "
            "launch grpo.py) or one of verl (python3 -m verl.trainer.main_ppo); there is none among the "
            f"{len(found)} commands of {name}{_read_elsewhere(found)}. What other programs train is written by hand: "
            "docs/configuration.md",
            code="migrate/no-training-command",
        )
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
    others = [
        one
        for one in found
        if not (launch_of(one) or trl_launch_of(one) or verl.verl_launch_of(one))
    ]
    for command in others:
        if command.words[0].startswith("--"):
            yield (
                f"warning: line {command.line}: {' '.join(command.words)} belongs to no command: a comment or a "
                "missing backslash ends the command before it, for bash as well"
            )
    yield from remarks_on_script(found)
    names = dict.fromkeys(
        command.words[0] for command in others if not command.words[0].startswith("--")
    )
    if names:
        yield f"not looked at: {', '.join(names)}"


def _jobs_of(found: Sequence[ShellCommand], name: str, processes: int | None) -> Jobs:
    """Return the programs of OpenRLHF that commands start; where they start none, those of verl, or scripts of TRL."""
    of_verl = [one for command in found if (one := verl.verl_launch_of(command))]
    if of_verl and not launches_of(found):
        return _verl_jobs(found, of_verl, name, processes)
    launches = [launch for command in found if (launch := trl_launch_of(command))]
    if launches_of(found) or not launches:
        return _openrlhf_jobs(found, name, processes)
    jobs = Jobs(remarks=list(_remarks(found)))
    for launch in launches:
        if launch.program not in scripts.SCRIPTS:
            jobs.refused.append(refusal_of(launch.program))
            continue
        origin = f"{name}, line {launch.line}"
        number = launch.processes or processes or 1
        text = yaml_of(launch, _read)
        left_out = [Written(part, (), advice_on(part)) for part in launch.unresolved]
        jobs.runs.append(_trl_job(text, origin, launch.program, number, left_out))
    return jobs


def _launches_other(line: ShellCommand) -> bool:
    """Return True for the launch of a script of TRL or verl; the words behind a file are flags of this command."""
    is_file = bool(line.words) and Path(line.words[0]).is_file()
    return not is_file and bool(trl_launch_of(line) or verl.verl_launch_of(line))


def _verl_jobs(
    found: Sequence[ShellCommand],
    launches: Sequence[Launch],
    name: str,
    processes: int | None,
) -> Jobs:
    jobs = Jobs(remarks=list(_remarks(found)))
    for launch in launches:
        if launch.program not in verl.TABLES:
            jobs.refused.append(verl.refusal_of(launch))
            continue
        origin = f"{launch.title} of verl, {name}, line {launch.line}"
        migrate = functools.partial(verl.launched, launch, processes)
        jobs.runs.append(Job(migrate=migrate, origin=origin, framework="verl"))
    return jobs


def _verl_file(path: str, processes: int | None) -> Jobs:
    text = _read(path)

    def migrate(adapter: str) -> Outcome:
        program, source = verl.program_of_text(text, path)
        outcome = verl.migrate(program, source, processes, adapter)
        outcome.warnings += [warning] if (warning := verl.left_out(text)) else []
        return outcome

    program, _ = verl.program_of_text(text, path)
    return Jobs(runs=[Job(migrate=migrate, origin=f"{program} of verl, {path}", framework="verl")])


def _trl_jobs(path: str, name: str | None, processes: int) -> Jobs:
    text = _read(path)
    if Path(path).suffix != ".py":
        return Jobs(runs=[_trl_job(text, path, name or scripts.script_of(text, path), processes)])
    found = read_script(text, path)
    return Jobs(runs=[_trl_job(found.text, path, found.script, processes, found.left_out)])


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


def _variables(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(
                f"--set {text}: expected NAME=VALUE", code="migrate/malformed-variable"
            )
        found[name] = value
    return found


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == _STDIN else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"rlhf migrate: cannot read {path}: {error.strerror}", code="config/unreadable-file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"rlhf migrate: {path}: expected text in UTF-8", code="config/malformed-file"
        ) from error


def _outputs(output: Path | None, number: int) -> list[Path | None]:
    if output is None or number == 1:
        return [output] * number
    return [output.with_stem(f"{output.stem}-{index}") for index in range(1, number + 1)]


def _adapter(output: Path | None) -> str:
    return str(output.with_name(f"{output.stem}_reward.py")) if output else "migrated_reward.py"


def _write(done: Sequence[Migration], outputs: Sequence[Path | None]) -> None:
    """Write all files, or none if one of them is there already, and print the reports.

    Raises:
        ConfigError: a file is there already or cannot be written.
    """
    texts: dict[Path, str] = {}
    for each, output in zip(done, outputs, strict=True):
        if output is not None:
            texts[output] = each.text
            texts |= {Path(path): text for path, text in each.files.items()}
    if there := [path for path in texts if path.exists()]:
        raise ConfigError(
            f"-o: {there[0]} is there already; choose another name or remove it",
            code="output/not-empty",
        )
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"-o {path}: cannot write it: {error.strerror}", code="output/cannot-create"
            ) from error
    for each, output in zip(done, outputs, strict=True):
        if output is None:
            print(each.text, end="")
            for name in each.files:
                print(f"note: {name} is written with -o FILE only", file=sys.stderr)
        print("\n".join(each.report.lines()), file=sys.stderr)
    for path in texts:
        print(f"written: {path}", file=sys.stderr)
