"""A simulated GPU for tests on machines without one, with arrays that are not NumPy's."""
