"""Meshes of ranks, under PyTorch's name ``torch.distributed.device_mesh``."""

from lowtide.framework.distributed.device_mesh import DeviceMesh as DeviceMesh
from lowtide.framework.distributed.device_mesh import init_device_mesh as init_device_mesh
