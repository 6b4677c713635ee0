"""Tiny models and the PEFT folders of adapters for them."""

from tests.plugins.peft_folders import base, untied_base, write_adapter

__all__ = ["base", "untied_base", "write_adapter"]
