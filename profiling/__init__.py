"""Memory profiling: which bytes of a step live when, and who owns them."""

if __name__ == "profiling":  # found through the root on sys.path; Python 3.15 wants its own
    import os as _os

    __path__.append(_os.path.join(_os.path.dirname(_os.__file__), "profiling"))
else:
    from ..framework.attribution.scopes import record_function as record_function
    from ..framework.attribution.scopes import scope as scope
    from .analysis.saved_tensors import SavedTensor as SavedTensor
    from .analysis.saved_tensors import SavedTensors as SavedTensors
    from .analysis.saved_tensors import saved_tensors as saved_tensors
    from .analysis.tables import Table as Table
    from .analysis.timeline import Timeline as Timeline
    from .estimate.advise import advise as advise
    from .estimate.budget_fit import fit as fit
    from .estimate.estimate import DeviceEstimate as DeviceEstimate
    from .estimate.estimate import Estimate as Estimate
    from .estimate.estimate import estimate as estimate
    from .estimate.fit_table import Fit as Fit
    from .estimate.fit_table import FitTable as FitTable
    from .estimate.fit_table import fit_table as fit_table
    from .estimate.plan import Decision as Decision
    from .estimate.plan import Plan as Plan
    from .estimate.proposals import Advice as Advice
    from .estimate.proposals import Proposal as Proposal
    from .estimate.rank_table import RankCell as RankCell
    from .estimate.rank_table import RankTable as RankTable
    from .estimate.rank_table import rank_table as rank_table
    from .estimate.what_if import Comparison as Comparison
    from .estimate.what_if import compare as compare
    from .leaks.detect import detect_retained as detect_retained
    from .leaks.findings import Finding as Finding
    from .leaks.waste import MemoryWarning as MemoryWarning
    from .leaks.waste import RetainedGraphWarning as RetainedGraphWarning
    from .leaks.waste import UnusedGraphWarning as UnusedGraphWarning
    from .leaks.waste import UnusedParameterWarning as UnusedParameterWarning
    from .magics import load_ipython_extension as load_ipython_extension
    from .magics import unload_ipython_extension as unload_ipython_extension
    from .profile import Profile as Profile
    from .profiler import MemoryProfiler as MemoryProfiler
    from .publisher import Publisher as Publisher
    from .publisher import publish as publish
    from .ranks.figures import RankFigures as RankFigures
    from .ranks.gathering import rank_report as rank_report
    from .ranks.report import RankReport as RankReport
    from .record.recording import Mark as Mark
    from .record.recording import Owner as Owner
    from .record.recording import Peak as Peak
    from .record.recording import Recording as Recording
