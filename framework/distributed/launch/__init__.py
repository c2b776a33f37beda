"""Many processes of one script: started with a rank each, watched, and ended together.

``lowtide launch`` and ``python -m lowtide.distributed.run`` are the commands. The environment of a
worker is that of torchrun.
"""
