"""Policy losses per action token. One file each."""
