"""Recording: events, their names, the system's memory, files."""
