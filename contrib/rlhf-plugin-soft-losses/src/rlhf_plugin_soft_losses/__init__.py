"""Policy losses without hard clipping: SAPO and GPG."""
