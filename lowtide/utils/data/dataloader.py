"""PyTorch's other import path of the loader."""

from lowtide.framework.data.collate import default_collate as default_collate
from lowtide.framework.data.collate import default_convert as default_convert
from lowtide.framework.data.loader import DataLoader as DataLoader
from lowtide.framework.data.workers import get_worker_info as get_worker_info
from lowtide.utils.data.dataset import Dataset as Dataset
from lowtide.utils.data.dataset import IterableDataset as IterableDataset
from lowtide.utils.data.sampler import BatchSampler as BatchSampler
from lowtide.utils.data.sampler import RandomSampler as RandomSampler
from lowtide.utils.data.sampler import Sampler as Sampler
from lowtide.utils.data.sampler import SequentialSampler as SequentialSampler
