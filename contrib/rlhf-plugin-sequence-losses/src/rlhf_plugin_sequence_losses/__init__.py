"""Policy losses over whole sequences: GMPO, LUSPO and VESPO."""
