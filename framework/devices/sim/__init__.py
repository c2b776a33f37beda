"""A simulated GPU for tests on machines without one; its arrays are not NumPy arrays."""
