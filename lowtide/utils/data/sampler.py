"""PyTorch's other import path of the samplers."""

from lowtide.framework.data.sampler import BatchSampler as BatchSampler
from lowtide.framework.data.sampler import RandomSampler as RandomSampler
from lowtide.framework.data.sampler import Sampler as Sampler
from lowtide.framework.data.sampler import SequentialSampler as SequentialSampler
from lowtide.framework.data.sampler import SubsetRandomSampler as SubsetRandomSampler
from lowtide.framework.data.sampler import WeightedRandomSampler as WeightedRandomSampler
