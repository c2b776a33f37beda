"""Data loading: datasets, samplers, collation, and DataLoader with its workers."""
