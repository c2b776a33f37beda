"""PyTorch's other import path of the sampler for several processes."""

from lowtide.framework.data.sampler import DistributedSampler as DistributedSampler
