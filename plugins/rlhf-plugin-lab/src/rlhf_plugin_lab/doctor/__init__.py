"""Diagnoses of a run from its own records: why it cannot learn, has collapsed, or is about to."""
