"""Attribution of allocations: module path and phase (scopes), op and source line (frames)."""
