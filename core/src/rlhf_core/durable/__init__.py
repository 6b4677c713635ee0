"""Everything of a run that survives a kill: the run folder, checkpoints, the ledger, readable records, the log.

A module here writes and reads files and knows their form. What a step computes, and where a resumed run goes on, is
decided in ``rlhf_core.loop``.
"""
