"""Answers read from token ids: thoughts, contents and tool calls. One file for each form of calls.

A mark that is a token of the tokenizer counts where the policy sampled this token, never where it spelled the mark.
Parsers of Transformers and vLLM read text, and take both for calls (docs/measurements.md,
``benchmarks/answer_parsers.py``).
"""
