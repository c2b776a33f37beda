"""The core: tensors, ops, autograd, memory, devices."""
