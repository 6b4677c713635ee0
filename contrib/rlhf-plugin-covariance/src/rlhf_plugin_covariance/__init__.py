"""Policy losses that keep entropy by treating high-covariance tokens apart: Clip-Cov and KL-Cov."""
