"""Recording of memory events: event log, names of owners, system memory, JSON format."""
