"""PEFT adapters: their folders, the base that they fit, and their merge into it."""
