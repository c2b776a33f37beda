"""PyTorch's other import path of the data sets."""

from lowtide.framework.data.dataset import ChainDataset as ChainDataset
from lowtide.framework.data.dataset import ConcatDataset as ConcatDataset
from lowtide.framework.data.dataset import Dataset as Dataset
from lowtide.framework.data.dataset import IterableDataset as IterableDataset
from lowtide.framework.data.dataset import StackDataset as StackDataset
from lowtide.framework.data.dataset import Subset as Subset
from lowtide.framework.data.dataset import TensorDataset as TensorDataset
from lowtide.framework.data.dataset import random_split as random_split
