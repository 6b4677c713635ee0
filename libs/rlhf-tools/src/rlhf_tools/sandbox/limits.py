"""Limits and guards of the sandbox, as options. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config

Guard = Literal["network", "files", "processes"]


class SandboxLimits(Config):
    """Limits of one program in the sandbox, and the guards without which none runs."""

    wall_s: float = Field(
        10.0, gt=0, le=3_600, description="seconds by the clock; the program is then killed"
    )
    cpu_s: int = Field(
        10, ge=1, le=3_600, description="seconds of computation of each of its processes"
    )
    memory_mib: int = Field(
        512, ge=64, le=1_048_576, description="address space of each of its processes, in MiB"
    )
    file_mib: int = Field(16, ge=1, le=65_536, description="largest file that it may write, in MiB")
    open_files: int = Field(64, ge=16, le=65_536, description="largest number of open files")
    processes: int = Field(
        1,
        ge=1,
        le=1_000,
        description="largest number of processes; 1: it may start none, though threads. More are counted 20 times a "
        "second, and at once where the run is not root's",
    )
    output_chars: int = Field(
        8_000,
        ge=1,
        le=10_000_000,
        description="largest number of characters of its output; the program is killed at twice as many bytes",
    )
    concurrency: int = Field(
        8,
        ge=1,
        le=1_000,
        description="programs at once in this process of the run; others wait, and their clocks do not run",
    )
    packages: bool = Field(
        False,
        description="let it import the packages of the run's own environment; they can be read then",
    )
    require: tuple[Guard, ...] = Field(
        ("network", "files"),
        description="guards without which no program is run: network, files (Landlock), processes (a namespace of "
        "process numbers). One that is not required is still put up where the machine has it",
    )
