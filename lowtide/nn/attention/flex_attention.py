"""Attention whose scores and mask are functions of the position."""

from lowtide.modules.flexible_attention.block_mask import BlockMask as BlockMask
from lowtide.modules.flexible_attention.block_mask import and_masks as and_masks
from lowtide.modules.flexible_attention.block_mask import (
    create_block_mask as create_block_mask,
)
from lowtide.modules.flexible_attention.block_mask import create_mask as create_mask
from lowtide.modules.flexible_attention.block_mask import noop_mask as noop_mask
from lowtide.modules.flexible_attention.block_mask import or_masks as or_masks
from lowtide.modules.flexible_attention.flex_attention import AuxOutput as AuxOutput
from lowtide.modules.flexible_attention.flex_attention import AuxRequest as AuxRequest
from lowtide.modules.flexible_attention.flex_attention import (
    FlexKernelOptions as FlexKernelOptions,
)
from lowtide.modules.flexible_attention.flex_attention import flex_attention as flex_attention
