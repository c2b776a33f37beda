"""Functions of a module's parameters: clipping of gradients, fusion, vectors."""
