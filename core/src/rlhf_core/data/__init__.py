"""Data of a run, from files to tasks: sources, row checks, prompts as tokens, mixing, and the chat template."""
