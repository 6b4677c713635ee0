"""The checks of each kind of component, one module a kind.

A check takes a ``Subject`` and raises with the numbers that it saw. Material that several kinds share stands one
folder up.
"""
