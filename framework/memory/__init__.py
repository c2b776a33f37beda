"""Memory: the pool of addresses, the ledger of live bytes, and allocation events."""
