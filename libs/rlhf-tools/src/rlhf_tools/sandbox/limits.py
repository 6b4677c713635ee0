"""Limits and guards of the sandbox, as options. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config

Guard = Literal["network", "files", "processes"]


class SandboxLimits(Config):
    """Limits of one program in the sandbox, and the guards without which none runs."""

    wall_s: float = Field(
        10.0,
        gt=0,
        le=3_600,
        description="seconds of wall-clock time after which a program is killed",
    )
    cpu_s: int = Field(
        10, ge=1, le=3_600, description="seconds of CPU time of each process of a program"
    )
    memory_mib: int = Field(
        512, ge=64, le=1_048_576, description="address space of each process of a program, in MiB"
    )
    file_mib: int = Field(
        16, ge=1, le=65_536, description="largest file that a program may write, in MiB"
    )
    open_files: int = Field(64, ge=16, le=65_536, description="largest number of open files")
    processes: int = Field(
        1,
        ge=1,
        le=1_000,
        description="largest number of processes of a program; 1: it may start threads but no process. More are "
        "counted 20 times a second, and at once if root does not run it",
    )
    output_chars: int = Field(
        8_000,
        ge=1,
        le=10_000_000,
        description="largest number of characters of a program's output; it is killed at twice as many bytes",
    )
    concurrency: int = Field(
        8,
        ge=1,
        le=1_000,
        description="largest number of programs at once in one process of the run; others wait, and their clocks do "
        "not run",
    )
    packages: bool = Field(
        False,
        description="let programs import, and so read, the packages of the run's own environment",
    )
    require: tuple[Guard, ...] = Field(
        ("network", "files"),
        description="guards without which no program runs: network, files (Landlock), processes (a namespace of "
        "process numbers); others are used too where the machine has them",
    )
