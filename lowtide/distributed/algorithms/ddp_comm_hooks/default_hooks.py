"""Hooks that average gradients, in their own type or in 16 bits."""

from lowtide.framework.distributed.communication_hooks import allreduce_hook as allreduce_hook
from lowtide.framework.distributed.communication_hooks import (
    bf16_compress_hook as bf16_compress_hook,
)
from lowtide.framework.distributed.communication_hooks import (
    bf16_compress_wrapper as bf16_compress_wrapper,
)
from lowtide.framework.distributed.communication_hooks import (
    fp16_compress_hook as fp16_compress_hook,
)
from lowtide.framework.distributed.communication_hooks import (
    fp16_compress_wrapper as fp16_compress_wrapper,
)
