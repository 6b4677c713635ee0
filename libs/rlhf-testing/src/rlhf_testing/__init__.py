"""Public material for tests of plugins: tiny models, fakes, and the conformance kit.

Nothing here takes part in a run.
"""
