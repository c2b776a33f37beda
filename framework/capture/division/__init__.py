"""Functions of which some statements run as they are written, and the others are recorded."""
