"""Activation functions, softmax among them."""
