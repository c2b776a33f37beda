"""Profiling: what the bytes of a step are, when, and whose."""

if __name__ == "profiling":  # found through the root on sys.path; Python 3.15 wants its own
    import os as _os

    __path__.append(_os.path.join(_os.path.dirname(_os.__file__), "profiling"))
else:
    from ..framework.attribution.scopes import record_function as record_function
    from ..framework.attribution.scopes import scope as scope
    from .advice import Advice as Advice
    from .advice import Proposal as Proposal
    from .advice import advise as advise
    from .findings import Finding as Finding
    from .prediction import DeviceEstimate as DeviceEstimate
    from .prediction import Estimate as Estimate
    from .prediction import estimate as estimate
    from .profile import Profile as Profile
    from .profiler import MemoryProfiler as MemoryProfiler
    from .recording import Mark as Mark
    from .recording import Owner as Owner
    from .recording import Peak as Peak
    from .recording import Recording as Recording
    from .retained import detect_retained as detect_retained
    from .saving import SavedTensor as SavedTensor
    from .saving import SavedTensors as SavedTensors
    from .saving import saved_tensors as saved_tensors
    from .tables import Table as Table
    from .timelines import Timeline as Timeline
    from .whatif import Comparison as Comparison
    from .whatif import compare as compare
