"""Random number generation: generators and the Philox stream."""
