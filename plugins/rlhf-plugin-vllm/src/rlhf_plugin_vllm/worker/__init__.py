"""What runs inside vLLM's worker processes. Only those import it."""
