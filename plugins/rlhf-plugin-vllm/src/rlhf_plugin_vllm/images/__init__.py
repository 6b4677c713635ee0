"""Images of prompts: opened beside vLLM, processed as the trainer processes them, and given to vLLM with their tokens.

vLLM expands nothing and processes no file: it gets all tokens of a prompt, and the pixels that the trainer computes
with. So both see the same pixels to the bit, and there is one expansion, the run's.
"""
