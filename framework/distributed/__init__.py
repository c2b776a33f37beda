"""Process groups and collectives: of one process, for now.

A world of one is a real one: every collective has the result that it has in PyTorch with one rank,
every argument is checked, and what needs a second rank is refused.
"""
