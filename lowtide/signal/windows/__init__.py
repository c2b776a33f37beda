"""Windows of signals, symmetric unless ``sym=False``."""

from lowtide.framework.ops.windows import bartlett as bartlett
from lowtide.framework.ops.windows import blackman as blackman
from lowtide.framework.ops.windows import cosine as cosine
from lowtide.framework.ops.windows import exponential as exponential
from lowtide.framework.ops.windows import gaussian as gaussian
from lowtide.framework.ops.windows import general_cosine as general_cosine
from lowtide.framework.ops.windows import general_hamming as general_hamming
from lowtide.framework.ops.windows import hamming as hamming
from lowtide.framework.ops.windows import hann as hann
from lowtide.framework.ops.windows import kaiser as kaiser
from lowtide.framework.ops.windows import nuttall as nuttall
