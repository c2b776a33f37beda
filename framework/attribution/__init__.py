"""Where the program is: module path and phase (scopes), op and source line (frames)."""
