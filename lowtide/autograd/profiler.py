"""PyTorch's older profiler of ops: everything inside a block."""

from lowtide.profiling.op_table import EventList as EventList
from lowtide.profiling.op_table import FunctionEvent as FunctionEvent
from lowtide.profiling.op_table import FunctionEventAvg as FunctionEventAvg
from lowtide.profiling.stepwise import WholeProfile as profile
from lowtide.profiling.stepwise import emit_itt as emit_itt
from lowtide.profiling.stepwise import emit_nvtx as emit_nvtx
from lowtide.profiling.stepwise import record_function as record_function

__all__ = [
    "EventList",
    "FunctionEvent",
    "FunctionEventAvg",
    "emit_itt",
    "emit_nvtx",
    "profile",
    "record_function",
]
