"""Training checkpoints that each rank writes a part of, and any number of ranks reads."""
