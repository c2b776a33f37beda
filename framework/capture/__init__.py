"""Captured steps: a function's kernel calls, recorded once and replayed.

``compiled.py`` is what a user calls: it runs a function as ever, records it, replays it, or says
why not. ``recorder.py`` records one call as a :class:`~.program.StepProgram` (``program.py``):
kernel calls on numbered values. ``guards.py`` finds what the recording depends on, ``arena.py``
places its values in one block of memory, and ``replay.py`` runs it.
"""
