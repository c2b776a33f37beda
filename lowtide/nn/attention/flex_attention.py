"""Attention whose scores and mask are functions of the position."""

from lowtide.modules.block_mask import BlockMask as BlockMask
from lowtide.modules.block_mask import and_masks as and_masks
from lowtide.modules.block_mask import create_block_mask as create_block_mask
from lowtide.modules.block_mask import create_mask as create_mask
from lowtide.modules.block_mask import noop_mask as noop_mask
from lowtide.modules.block_mask import or_masks as or_masks
from lowtide.modules.flex_attention import AuxOutput as AuxOutput
from lowtide.modules.flex_attention import AuxRequest as AuxRequest
from lowtide.modules.flex_attention import FlexKernelOptions as FlexKernelOptions
from lowtide.modules.flex_attention import flex_attention as flex_attention
