"""The commands that train on examples.

``trainer`` has the steps that they share, a module named like its command the rows of each. Losses live one folder up.
"""
