"""Loggers of scalars and memory: CSV, JSON lines, and the callback that feeds them."""

from lowtide.profiling.loggers.record_files import CSVLogger as CSVLogger
from lowtide.profiling.loggers.record_files import JSONLLogger as JSONLLogger
from lowtide.profiling.loggers.training_log import TrainingLog as TrainingLog
from lowtide.profiling.loggers.training_log import memory_scalars as memory_scalars
