"""A stand-in for a GPU on machines without one: arrays that nothing takes for NumPy's."""
