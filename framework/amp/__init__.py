"""Mixed precision: autocast regions, and custom functions within them."""
