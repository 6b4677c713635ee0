"""The command ``rlhf serve-rm``, which serves a reward model over OpenRLHF's JSON protocol."""
