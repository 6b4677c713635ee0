"""A sandboxed Python: programs of the policy in a process with limits, without network, files and environment."""
