"""The reward ``http``: scores from servers that speak OpenRLHF's JSON protocol."""
