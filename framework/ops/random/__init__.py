"""Random ops: sampling from distributions, dropout."""
