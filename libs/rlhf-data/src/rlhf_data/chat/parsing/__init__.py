"""Answers read from token ids: thoughts, contents and tool calls. One file for each form of calls.

A mark that is a token of the tokenizer counts where the policy sampled this token, never where it spelled the mark.
"""
