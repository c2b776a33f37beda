"""PyTorch's other import path of the loader."""

from lowtide.framework.data.collate import default_collate as default_collate
from lowtide.framework.data.collate import default_convert as default_convert
from lowtide.framework.data.loader import DataLoader as DataLoader
from lowtide.framework.data.workers import get_worker_info as get_worker_info
