"""PyTorch's profiler: ops in time and bytes. ``lowtide.profiling`` says more about memory."""

from lowtide.profiling.stepwise import ProfilerAction as ProfilerAction
from lowtide.profiling.stepwise import ProfilerActivity as ProfilerActivity
from lowtide.profiling.stepwise import profile as profile
from lowtide.profiling.stepwise import record_function as record_function
from lowtide.profiling.stepwise import schedule as schedule
from lowtide.profiling.stepwise import supported_activities as supported_activities
from lowtide.profiling.stepwise import tensorboard_trace_handler as tensorboard_trace_handler


def kineto_available() -> bool:
    """True: :class:`profile` records, by lowtide's own means."""
    return True


__all__ = [
    "ProfilerAction",
    "ProfilerActivity",
    "kineto_available",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]
