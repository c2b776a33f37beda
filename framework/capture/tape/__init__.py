"""Small kernel calls of a replay, made without Python.

- ``traced_array.py``: arrays that note what a kernel does with NumPy.
- ``numpy_loops.py``: one such call as a loop of NumPy's, and the order of its elements.
- ``kernel_loops.py``: a kernel call as such loops, compared with the kernel before it is used.
- ``tape.py``: the loops of many kernel calls in one list, which compiled code goes through.
"""
