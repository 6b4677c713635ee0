"""Combinations of options that no run can have, each refused with the option to change.

Checks read resolved options and declared capabilities. A check knows no component by name and loads nothing heavy.
"""
