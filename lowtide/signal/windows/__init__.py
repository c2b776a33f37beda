"""Windows of signals, symmetric unless ``sym=False``."""

from lowtide.framework.ops.signal.windows import bartlett as bartlett
from lowtide.framework.ops.signal.windows import blackman as blackman
from lowtide.framework.ops.signal.windows import cosine as cosine
from lowtide.framework.ops.signal.windows import exponential as exponential
from lowtide.framework.ops.signal.windows import gaussian as gaussian
from lowtide.framework.ops.signal.windows import general_cosine as general_cosine
from lowtide.framework.ops.signal.windows import general_hamming as general_hamming
from lowtide.framework.ops.signal.windows import hamming as hamming
from lowtide.framework.ops.signal.windows import hann as hann
from lowtide.framework.ops.signal.windows import kaiser as kaiser
from lowtide.framework.ops.signal.windows import nuttall as nuttall
