"""Neural-network modules, under PyTorch's name for them."""
