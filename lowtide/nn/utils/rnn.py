"""Packing and padding of sequences, under PyTorch's name for it."""

from lowtide.modules.packing import PackedSequence as PackedSequence
from lowtide.modules.packing import invert_permutation as invert_permutation
from lowtide.modules.packing import pack_padded_sequence as pack_padded_sequence
from lowtide.modules.packing import pack_sequence as pack_sequence
from lowtide.modules.packing import pad_packed_sequence as pad_packed_sequence
from lowtide.modules.packing import pad_sequence as pad_sequence
from lowtide.modules.packing import unpack_sequence as unpack_sequence
from lowtide.modules.packing import unpad_sequence as unpad_sequence
