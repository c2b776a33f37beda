"""Where recipes get their data: what is at hand first, then packages that ship it.

Each function names its source in what it returns. When nothing is within reach it says what it
tried, and returns something built in, so that a recipe always runs.
"""

from lowtide.recipes.data.images import Images as Images
from lowtide.recipes.data.images import digits as digits
from lowtide.recipes.data.images import fashion as fashion
from lowtide.recipes.data.sequences import Sequences as Sequences
from lowtide.recipes.data.sequences import vowels as vowels
from lowtide.recipes.data.tables import Table as Table
from lowtide.recipes.data.tables import diamonds as diamonds
from lowtide.recipes.data.texts import Encoder as Encoder
from lowtide.recipes.data.texts import Reviews as Reviews
from lowtide.recipes.data.texts import Text as Text
from lowtide.recipes.data.texts import bible as bible
from lowtide.recipes.data.texts import minilm as minilm
from lowtide.recipes.data.texts import reviews as reviews
