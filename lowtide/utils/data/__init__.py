"""Data sets, samplers and the loader, under PyTorch's names."""

from lowtide.framework.data.collate import default_collate as default_collate
from lowtide.framework.data.collate import default_convert as default_convert
from lowtide.framework.data.dataset import ChainDataset as ChainDataset
from lowtide.framework.data.dataset import ConcatDataset as ConcatDataset
from lowtide.framework.data.dataset import Dataset as Dataset
from lowtide.framework.data.dataset import IterableDataset as IterableDataset
from lowtide.framework.data.dataset import StackDataset as StackDataset
from lowtide.framework.data.dataset import Subset as Subset
from lowtide.framework.data.dataset import TensorDataset as TensorDataset
from lowtide.framework.data.dataset import random_split as random_split
from lowtide.framework.data.loader import DataLoader as DataLoader
from lowtide.framework.data.sampler import BatchSampler as BatchSampler
from lowtide.framework.data.sampler import DistributedSampler as DistributedSampler
from lowtide.framework.data.sampler import RandomSampler as RandomSampler
from lowtide.framework.data.sampler import Sampler as Sampler
from lowtide.framework.data.sampler import SequentialSampler as SequentialSampler
from lowtide.framework.data.sampler import SubsetRandomSampler as SubsetRandomSampler
from lowtide.framework.data.sampler import WeightedRandomSampler as WeightedRandomSampler
from lowtide.framework.data.workers import WorkerInfo as WorkerInfo
from lowtide.framework.data.workers import get_worker_info as get_worker_info
