"""PEFT folders: their files, the base that they fit, and models that compute with both."""
