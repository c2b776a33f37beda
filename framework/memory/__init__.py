"""Memory: which addresses are taken (pool), by whom (ledger), and who listens (events)."""
