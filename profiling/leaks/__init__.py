"""What outlives its step, and who holds it."""
