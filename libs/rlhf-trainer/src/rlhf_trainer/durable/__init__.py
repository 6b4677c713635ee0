"""Files of a run that survive a kill: the run folder, checkpoints, the ledger, readable records, the log.

A module here writes and reads files and knows their form. ``rlhf_trainer.loop`` decides what goes into them and where a
resumed run goes on.
"""
