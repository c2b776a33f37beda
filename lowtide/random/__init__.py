"""The default generators: seed them, and save, restore or fork their streams."""

from lowtide.framework.random.generator import Generator as Generator
from lowtide.framework.random.generator import default_generator as default_generator
from lowtide.framework.random.generator import fork_rng as fork_rng
from lowtide.framework.random.generator import get_rng_state as get_rng_state
from lowtide.framework.random.generator import initial_seed as initial_seed
from lowtide.framework.random.generator import manual_seed as manual_seed
from lowtide.framework.random.generator import seed as seed
from lowtide.framework.random.generator import set_rng_state as set_rng_state
