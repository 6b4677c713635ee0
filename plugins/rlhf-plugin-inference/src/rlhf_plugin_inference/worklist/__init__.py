"""Work through a long list of prompts into a file: in order, with the configuration that it was begun with, and shown.

What a command does with one prompt is its own room's.
"""
