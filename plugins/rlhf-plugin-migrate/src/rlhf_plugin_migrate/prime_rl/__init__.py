"""prime-rl: its TOML files for ``rl`` and ``sft``, and launches that name them."""
