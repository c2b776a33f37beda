"""DLPack: tensors and other libraries' arrays over the same memory."""

from lowtide.framework.interop.protocols import to_dlpack as to_dlpack
from lowtide.framework.ops.creation.from_data import from_dlpack as from_dlpack
