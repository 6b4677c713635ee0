"""Tiny models and adapters for commands that generate, chat and merge."""

from tests.plugins.peft_folders import base, untied_base, write_adapter

__all__ = ["base", "untied_base", "write_adapter"]
