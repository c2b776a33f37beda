"""Discrete Fourier transforms, differentiable any number of times."""

from lowtide.framework.ops.signal.fft import fft as fft
from lowtide.framework.ops.signal.fft import fft2 as fft2
from lowtide.framework.ops.signal.fft import fftfreq as fftfreq
from lowtide.framework.ops.signal.fft import fftn as fftn
from lowtide.framework.ops.signal.fft import fftshift as fftshift
from lowtide.framework.ops.signal.fft import hfft as hfft
from lowtide.framework.ops.signal.fft import hfft2 as hfft2
from lowtide.framework.ops.signal.fft import hfftn as hfftn
from lowtide.framework.ops.signal.fft import ifft as ifft
from lowtide.framework.ops.signal.fft import ifft2 as ifft2
from lowtide.framework.ops.signal.fft import ifftn as ifftn
from lowtide.framework.ops.signal.fft import ifftshift as ifftshift
from lowtide.framework.ops.signal.fft import ihfft as ihfft
from lowtide.framework.ops.signal.fft import ihfft2 as ihfft2
from lowtide.framework.ops.signal.fft import ihfftn as ihfftn
from lowtide.framework.ops.signal.fft import irfft as irfft
from lowtide.framework.ops.signal.fft import irfft2 as irfft2
from lowtide.framework.ops.signal.fft import irfftn as irfftn
from lowtide.framework.ops.signal.fft import rfft as rfft
from lowtide.framework.ops.signal.fft import rfft2 as rfft2
from lowtide.framework.ops.signal.fft import rfftfreq as rfftfreq
from lowtide.framework.ops.signal.fft import rfftn as rfftn
