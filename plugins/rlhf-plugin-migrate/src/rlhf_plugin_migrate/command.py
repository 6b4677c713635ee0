"""The command ``rlhf migrate``: it reads the input, writes the configurations and prints the reports."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rlhf_config import FlagParser
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader

from .jobs import STDIN, Jobs, is_launch, jobs_of, prime_rl_job, read_text, trl_jobs, verl_file
from .migration import Migration, migrated
from .shell.script import ShellCommand, commands
from .shell.unresolved import remarks_on_values
from .trl import scripts

_SHELL = frozenset({".sh", ".bash", ".slurm", ".sbatch"})
"""Suffixes of shell scripts, in which every framework is looked for."""
_FRAMEWORKS = {".py": "trl", ".ipynb": "trl", ".toml": "prime-rl"}
"""Suffix of a file -> the framework that it is of, unless ``--from`` says so."""
_YAML = frozenset({".yaml", ".yml"})


def parser() -> FlagParser:
    """Return the parser of the command's flags."""
    own = FlagParser(
        prog="rlhf migrate",
        description="Turn a launch of OpenRLHF, TRL, verl, SkyRL or prime-rl into a configuration for rlhf train, sft, "
        "rm or dpo, and report what became of each of its options. The command runs nothing of the input.",
        usage="rlhf migrate [OPTIONS] FILE\n"
        "       rlhf migrate [OPTIONS] -- python3 -m openrlhf.cli.train_ppo_ray ...\n"
        "       rlhf migrate [OPTIONS] -- trl grpo ...\n"
        "       rlhf migrate [OPTIONS] -- python3 -m verl.trainer.main_ppo ...\n"
        "       rlhf migrate [OPTIONS] -- python -m skyrl.train.entrypoints.main_base ...",
    )
    own.add_argument(
        "input",
        nargs=argparse.REMAINDER,
        help="shell script with commands of OpenRLHF, TRL, verl or SkyRL; YAML file, Python script or notebook of TRL; "
        f"YAML file that hydra wrote for verl; TOML file of prime-rl; {STDIN}: standard input; or a command line "
        "behind --",
    )
    own.add_argument(
        "--from",
        dest="framework",
        choices=("openrlhf", "trl", "verl", "prime-rl"),
        help="framework of a file (default: trl for .py, prime-rl for .toml; a shell script says it itself)",
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
        help="TRL: script that the YAML file is for, if its keys do not say it, or algorithm of a Python script or "
        "notebook that has several",
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
        ConfigError: a flag is wrong, or the input cannot be read or has no command of a framework that
            is read.
    """
    own = parser().parse_args(list(arguments))
    line, variables = ShellCommand(tuple(own.input), line=1), _variables(own.set)
    launches = is_launch(line)
    if not launches and own.input[1:]:
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
    if launches:
        _refuse_unread(own, "a command line")
        jobs = jobs_of([line], "the command line", own.processes)
    elif len(own.input) > 1:
        raise ConfigError(
            "rlhf migrate: expected one file, or a command line of OpenRLHF, TRL, verl, SkyRL or prime-rl, such as "
            "python3 -m openrlhf.cli.train_ppo_ray, trl grpo or python3 -m verl.trainer.main_ppo; got "
            f"{' '.join(line.words)}",
            code="migrate/several-files",
        )
    else:
        jobs = _jobs_of_file(own, own.input[0], variables)
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


def _jobs_of_file(own: argparse.Namespace, path: str, variables: dict[str, str]) -> Jobs:
    suffix = Path(path).suffix
    framework = own.framework or _FRAMEWORKS.get(suffix)
    if suffix not in _SHELL and framework not in (None, "openrlhf"):
        _refuse_unread(own, f"a file of {framework}")
        if framework == "trl":
            return trl_jobs(path, own.script, own.processes or 1)
        return verl_file(path, own.processes) if framework == "verl" else prime_rl_job(path)
    if suffix in _YAML:
        raise ConfigError(
            f"rlhf migrate: {path}: expected the framework that the YAML file is of: --from trl or --from verl",
            code="migrate/unknown-framework",
        )
    return jobs_of(_script(path, variables), path, own.processes)


def _refuse_unread(own: argparse.Namespace, what: str) -> None:
    """Refuse variables where no shell script is read."""
    if own.set:
        raise ConfigError(
            f"--set {own.set[0]}: gives a variable of a shell script its value, and the input is {what}; leave --set "
            "out, and write the value into the input or, afterwards, into the configuration",
            code="migrate/unused-variable",
        )


def _script(path: str, variables: dict[str, str]) -> list[ShellCommand]:
    folder = Path.cwd() if path == STDIN else Path(os.path.abspath(path)).parent
    text = read_text(path)
    for remark in remarks_on_values(variables, text):
        print(remark, file=sys.stderr)
    return commands(text, variables, folder)


def _variables(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(
                f"--set {text}: expected NAME=VALUE with the name of a shell variable, such as --set HOME=/home/me",
                code="migrate/malformed-variable",
            )
        found[name] = value
    return found


def _outputs(output: Path | None, number: int) -> list[Path | None]:
    if output is None or number == 1:
        return [output] * number
    return [output.with_stem(f"{output.stem}-{index}") for index in range(1, number + 1)]


def _adapter(output: Path | None) -> str:
    return str(output.with_name(f"{output.stem}_reward.py")) if output else "migrated_reward.py"


def _write(done: Sequence[Migration], outputs: Sequence[Path | None]) -> None:
    """Write all files, or none if one of them is there already, and print the reports."""
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
