"""Code generation from the op declarations: stubs and the operators page."""
