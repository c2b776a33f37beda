"""Discrete Fourier transforms, differentiable any number of times."""

from lowtide.framework.ops.fourier import fft as fft
from lowtide.framework.ops.fourier import fft2 as fft2
from lowtide.framework.ops.fourier import fftfreq as fftfreq
from lowtide.framework.ops.fourier import fftn as fftn
from lowtide.framework.ops.fourier import fftshift as fftshift
from lowtide.framework.ops.fourier import hfft as hfft
from lowtide.framework.ops.fourier import hfft2 as hfft2
from lowtide.framework.ops.fourier import hfftn as hfftn
from lowtide.framework.ops.fourier import ifft as ifft
from lowtide.framework.ops.fourier import ifft2 as ifft2
from lowtide.framework.ops.fourier import ifftn as ifftn
from lowtide.framework.ops.fourier import ifftshift as ifftshift
from lowtide.framework.ops.fourier import ihfft as ihfft
from lowtide.framework.ops.fourier import ihfft2 as ihfft2
from lowtide.framework.ops.fourier import ihfftn as ihfftn
from lowtide.framework.ops.fourier import irfft as irfft
from lowtide.framework.ops.fourier import irfft2 as irfft2
from lowtide.framework.ops.fourier import irfftn as irfftn
from lowtide.framework.ops.fourier import rfft as rfft
from lowtide.framework.ops.fourier import rfft2 as rfft2
from lowtide.framework.ops.fourier import rfftfreq as rfftfreq
from lowtide.framework.ops.fourier import rfftn as rfftn
