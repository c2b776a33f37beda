"""Random numbers: generators, and the Philox stream that they draw from."""
