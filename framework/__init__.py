"""The core: tensors, ops, autograd, memory, devices."""

import os as _os

# OpenBLAS's threads stay awake after a product, by default for some 20 ms, and take the cores from
# threads of ours. 2**22 cycles, a millisecond or two, outlast the gap to a next product. It reads
# this once, when NumPy loads it: in this process if that is still to come, and in its children.
_os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "22")
