"""Random draws, and gradients of draws and distribution functions by their parameters."""
