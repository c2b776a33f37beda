"""PyTorch's ``profiler.profile``: ops in time and bytes, over chosen steps of a training loop."""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from .op_table import EventList, FunctionEventAvg
from .op_times import OpRecorder


class ProfilerActivity(enum.Enum):
    """What is recorded: here the ops that Python calls, ``CPU``, wherever they run."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(enum.Enum):
    """What a profile does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def supported_activities() -> set[ProfilerActivity]:
    """Return what can be recorded."""
    return {ProfilerActivity.CPU}


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """Return a schedule: after ``skip_first`` steps, cycles of wait, warm-up and recorded steps.

    Args:
        wait: Steps of a cycle in which nothing happens.
        warmup: Steps after them; here they are the same.
        active: Recorded steps after them, of which the last saves.
        repeat: How many cycles; 0 for no end.
        skip_first: Steps before the first cycle.
        skip_first_wait: If not 0, the first cycle does not wait.

    Raises:
        ValueError: A number is negative, or ``active`` is 0.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active <= 0:
        raise ValueError(
            "schedule: wait, warmup, repeat and skip_first are 0 or more, active is 1 or more; got"
            f" wait={wait}, warmup={warmup}, active={active}, repeat={repeat}, "
            f"skip_first={skip_first}."
        )

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first
        if skip_first_wait:
            step += wait
        cycle = wait + warmup + active
        if repeat and step // cycle >= repeat:
            return ProfilerAction.NONE
        place = step % cycle
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """Return what writes a trace into a folder, to be given as ``on_trace_ready``."""

    def write(prof: profile) -> None:
        Path(dir_name).mkdir(parents=True, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
        prof.export_chrome_trace(str(Path(dir_name) / name))

    return write


class record_function(contextlib.ContextDecorator):
    """Name a stretch of a program in the profile that records it; a context manager and decorator.

    Args:
        name: Its name.
        args: Accepted, as PyTorch does; not recorded.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name, self.args = name, args
        self._began: list[int] = []

    def __enter__(self) -> record_function:
        self._began.append(time.perf_counter_ns())
        return self

    def __exit__(self, *exc: object) -> None:
        began = self._began.pop()
        recorder = OpRecorder.current
        if recorder is not None:
            recorder.add_range(self.name, max(began, recorder.began), time.perf_counter_ns())


class profile:
    """Record ops, their times and bytes; a context manager.

    With a ``schedule``, call :meth:`step` at the end of each step.

    Args:
        activities: What to record; CPU is always, and CUDA adds nothing: times are of the calls.
        schedule: Step number -> what to do; None records everything.
        on_trace_ready: Called with this profile when a stretch was recorded.
        record_shapes: Note shapes.
        profile_memory: Let tables have columns of bytes, which are exact.
        with_stack: Note source lines; they are noted anyway.
        with_flops: Refused: ``lowtide.profiling.estimate`` counts operations.
        with_modules: Note module paths; they are noted anyway.
        experimental_config: Refused.
        execution_trace_observer: Refused.
        acc_events: Keep events of earlier cycles.
        use_cuda: Old and without meaning.
        custom_trace_id_callback: Accepted; traces have no numbers.
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        execution_trace_observer: Any = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
    ) -> None:
        if with_flops:
            raise NotImplementedError(
                "profile: with_flops is not there; lowtide.profiling.estimate(step).flops counts "
                "the operations of a step."
            )
        for name, given in (
            ("experimental_config", experimental_config),
            ("execution_trace_observer", execution_trace_observer),
        ):
            if given is not None:
                raise NotImplementedError(
                    f"profile: {name} steers a recorder that is not here. Leave it out."
                )
        self.activities = set(activities or supported_activities())
        self.schedule = schedule or _always
        self.on_trace_ready = on_trace_ready
        self.record_shapes, self.profile_memory = record_shapes, profile_memory
        self.with_stack, self.with_flops, self.with_modules = with_stack, with_flops, with_modules
        self.acc_events = acc_events
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._by_step = schedule is not None
        self._step: record_function | None = None
        self._recorder: OpRecorder | None = None
        self._metadata: dict[str, str] = {}
        self._earlier: list[Any] = []

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin: record, if the schedule says so for step 0."""
        self._act(self.schedule(self.step_num))
        self._open_step()

    def step(self) -> None:
        """Say that a step has ended and the next begins."""
        self._close_step()
        self.step_num += 1
        self._act(self.schedule(self.step_num))
        self._open_step()

    def stop(self) -> None:
        """End; what is being recorded is handed to ``on_trace_ready``."""
        self._close_step()
        self._act(None)

    def _act(self, action: ProfilerAction | None) -> None:
        before, self.current_action = self.current_action, action or ProfilerAction.NONE
        if before in _RECORDS and (
            action not in _RECORDS or before is ProfilerAction.RECORD_AND_SAVE
        ):
            assert self._recorder is not None
            self._recorder.stop()
            if action is None or before is ProfilerAction.RECORD_AND_SAVE:
                if self.on_trace_ready is not None:
                    self.on_trace_ready(self)
            else:
                warnings.warn(
                    "profile: the schedule ends a recording without saving it.", stacklevel=3
                )
            before = ProfilerAction.NONE
        if action in _RECORDS and before not in _RECORDS:
            if self.acc_events and self._recorder is not None:
                self._earlier += self._recorder.events
            self._recorder = OpRecorder(self.record_shapes)
            self._recorder.start()

    def _open_step(self) -> None:
        if self._by_step and self.current_action in _RECORDS:
            self._step = record_function(f"ProfilerStep#{self.step_num}")
            self._step.__enter__()

    def _close_step(self) -> None:
        if self._step is not None:
            self._step.__exit__()
            self._step = None

    def events(self) -> EventList:
        """Return each call, in the order of their beginnings.

        Raises:
            RuntimeError: Nothing was recorded.
        """
        if self._recorder is None:
            raise RuntimeError(
                "profile: nothing was recorded yet; the schedule has not come to it."
            )
        return EventList.of([*self._earlier, *self._recorder.events], self.profile_memory)

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Return sums by name, and by shapes or source lines if asked for."""
        return self.events().key_averages(group_by_input_shape, group_by_stack_n)

    def export_chrome_trace(self, path: str) -> None:
        """Write a trace that Perfetto and Chrome read; ``.gz`` compresses."""
        self.events().export_chrome_trace(path)

    def add_metadata(self, key: str, value: str) -> None:
        """Keep a text beside the recording."""
        self._metadata[key] = value

    add_metadata_json = add_metadata
    preset_metadata_json = add_metadata

    def get_trace_id(self) -> str | None:
        """Return None: traces have no numbers."""

    def toggle_collection_dynamic(
        self, enable: bool, activities: Iterable[ProfilerActivity]
    ) -> NoReturn:
        """Not supported."""
        raise NotImplementedError(
            "profile.toggle_collection_dynamic: end this profile and start another one, or use a "
            "schedule."
        )

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> NoReturn:
        """Not supported: one source line an op is recorded, not its stack."""
        raise NotImplementedError(
            "profile.export_stacks: one source line an op is recorded, not its stack. For a flame "
            "graph of bytes use lowtide.profiling.MemoryProfiler and its flamegraph."
        )

    def export_memory_timeline(self, path: str, device: str | None = None) -> NoReturn:
        """Not supported: MemoryProfiler draws it, by role and exactly."""
        raise NotImplementedError(
            "profile.export_memory_timeline: lowtide.profiling.MemoryProfiler records it by role"
            " and draws it: prof.plot(), or `lowtide profile script.py`."
        )


def _always(step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


class WholeProfile:
    """PyTorch's older ``autograd.profiler.profile``: everything inside a ``with`` block.

    Args:
        enabled: False records nothing.
        use_cuda: Without meaning, as are the other arguments not named here.
        record_shapes: Note shapes.
        with_flops: Refused.
        profile_memory: Let tables have columns of bytes.
        with_stack: Note source lines; they are noted anyway.
        with_modules: Note module paths; they are noted anyway.
    """

    def __init__(
        self,
        enabled: bool = True,
        *,
        use_cuda: bool = False,
        use_device: str | None = None,
        record_shapes: bool = False,
        with_flops: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_modules: bool = False,
        use_kineto: bool = False,
        use_cpu: bool = True,
        experimental_config: Any = None,
        acc_events: bool = False,
        custom_trace_id_callback: Callable[[], str] | None = None,
    ) -> None:
        self.enabled = enabled
        self._profile = profile(
            record_shapes=record_shapes,
            with_flops=with_flops,
            profile_memory=profile_memory,
            experimental_config=experimental_config,
        )

    def __enter__(self) -> WholeProfile:
        if self.enabled:
            self._profile.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.enabled:
            self._profile.stop()

    @property
    def function_events(self) -> EventList:
        """Each call."""
        return self._profile.events()

    @property
    def self_cpu_time_total(self) -> float:
        """Sum of all self times, in microseconds."""
        return self.function_events.self_cpu_time_total

    def key_averages(
        self,
        group_by_input_shape: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Return sums by name."""
        return self._profile.key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> FunctionEventAvg:
        """Return the sum over all events."""
        return self.function_events.total_average()

    def table(self, *args: Any, **kwargs: Any) -> str:
        """Return a table of the events; see :meth:`EventList.table`."""
        return self.function_events.table(*args, **kwargs)

    def export_chrome_trace(self, path: str) -> None:
        """Write a trace that Perfetto and Chrome read."""
        self._profile.export_chrome_trace(path)

    def __str__(self) -> str:
        return self.table() if self._profile._recorder is not None else "<unfinished profile>"


def emit_nvtx(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported: no marks are sent to NVIDIA's profiler."""
    raise NotImplementedError(
        "emit_nvtx: no marks are sent to NVIDIA's profiler. Use lowtide.profiler.profile for times."
    )


def emit_itt(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported: no marks are sent to Intel's profiler."""
    raise NotImplementedError(
        "emit_itt: no marks are sent to Intel's profiler. Use lowtide.profiler.profile for times."
    )
