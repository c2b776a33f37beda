"""The short-time Fourier transform and its inverse.

Both are compositions: frames are a view of the signal, and overlapping ones are added by the
transpose of that view. The inverse is the least-squares estimate of Griffin & Lim 1984, "Signal
estimation from modified short-time Fourier transform": the sum of windowed frames over the sum of
squared windows.
"""

from __future__ import annotations

from ...dtypes import COMPLEX, FLOAT
from ..manipulation.pad import pad
from ..registry import function
from ..views.as_strided import _fold_sum, _unfold
from ..views.view_as_real import view_as_real
from .fft import _fft_c2c, _fft_c2r, _fft_r2c


def _sizes(name, n_fft, hop_length, win_length, window):
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    if hop <= 0:
        raise RuntimeError(f"{name}: expected hop_length > 0, but got hop_length={hop}.")
    if not 0 < length <= n_fft:
        raise RuntimeError(
            f"{name}: expected 0 < win_length <= n_fft, but got win_length={length} and "
            f"n_fft={n_fft}."
        )
    if window is not None and tuple(window.shape) != (length,):
        raise RuntimeError(
            f"{name}: expected a 1D window tensor of size equal to win_length={length}, but got "
            f"window with size {tuple(window.shape)}."
        )
    return hop, length


def _whole(window, length, n_fft, like):
    # The window in the middle of n_fft points; None if it is all ones.
    if window is None and length == n_fft:
        return None
    if window is None:
        window = like.new_ones((length,), dtype=like.dtype.to_real())
    left = (n_fft - length) // 2
    return window if length == n_fft else pad(window, (left, n_fft - length - left))


@function(method=True, deep=True)
def stft(
    input,
    n_fft,
    hop_length=None,
    win_length=None,
    window=None,
    center=True,
    pad_mode="reflect",
    normalized=False,
    onesided=None,
    return_complex=None,
    align_to_window=None,
):
    """Compute the short-time Fourier transform of signals.

    Args:
        input: (B, L) or (L,), real or complex.
        n_fft: Points of a transform.
        hop_length: From frame to frame; ``n_fft // 4`` if left out.
        win_length: Of the window, which stands in the middle of the frame; ``n_fft`` if left out.
        window: (win_length,), by which each frame is multiplied; ones if left out.
        center: Frame t is centered at ``t * hop_length``: the signal is padded on both sides.
        pad_mode: How: see :func:`nn.functional.pad`.
        normalized: Divide by ``sqrt(n_fft)``.
        onesided: Only non-negative frequencies; by default, for real input and window.
        return_complex: Return complex numbers; else pairs of real ones in a last dim. Must be given
            for real input.
        align_to_window: Accepted as None or False, and only without ``center``.

    Returns:
        Tensor (B, N, T): N frequencies, n_fft // 2 + 1 or n_fft, and T frames.

    Raises:
        RuntimeError: The arguments do not fit together.

    Memory:
        Keeps the window and, if that needs a gradient, the padded input.
    """
    if input.dtype.category < FLOAT:
        raise RuntimeError(
            f"stft: expected a tensor of floating point or complex values; got {input.dtype}. "
            "Convert it with .to(lowtide.float32)."
        )
    if input.ndim not in (1, 2):
        raise RuntimeError(f"stft: expected a 1D or 2D tensor; got shape {tuple(input.shape)}.")
    if align_to_window:
        raise RuntimeError(
            "stft: align_to_window=True is not supported. Pad the input, and pass center=False."
        )
    complex_window = window is not None and window.dtype.category == COMPLEX
    if return_complex is None:
        if not (input.is_complex() or complex_window):
            raise RuntimeError(
                "stft requires the return_complex parameter be given for real inputs. Pass "
                "return_complex=True, and lowtide.view_as_real() for pairs of real numbers."
            )
        return_complex = True
    hop, length = _sizes("stft", n_fft, hop_length, win_length, window)
    x = input if input.ndim == 2 else input.unsqueeze(0)
    if center:
        x = pad(x, (n_fft // 2, n_fft // 2), pad_mode)
    if not 0 < n_fft <= x.shape[1]:
        raise RuntimeError(
            f"stft: expected 0 < n_fft <= {x.shape[1]}, the length of the (padded) input, but got "
            f"n_fft={n_fft}."
        )
    frames = _unfold(x, 1, n_fft, hop)
    whole = _whole(window, length, n_fft, input)
    frames = frames if whole is None else frames * whole
    if onesided is None:
        onesided = not frames.is_complex()
    norm = "ortho" if normalized else "backward"
    if frames.is_complex():
        if onesided:
            raise RuntimeError(
                "Cannot have onesided output if window or input is complex. Pass onesided=False."
            )
        out = _fft_c2c(frames, dims=(2,), norm=norm, inverse=False)
    elif onesided:
        out = _fft_r2c(frames, dims=(2,), norm=norm)
    else:
        out = _fft_c2c(frames.to(frames.dtype.to_complex()), dims=(2,), norm=norm, inverse=False)
    out = out.transpose(1, 2)
    if input.ndim == 1:
        out = out.squeeze(0)
    if return_complex:
        return out

    return view_as_real(out)


@function(method=True)
def istft(
    input,
    n_fft,
    hop_length=None,
    win_length=None,
    window=None,
    center=True,
    normalized=False,
    onesided=None,
    length=None,
    return_complex=False,
):
    """Compute the inverse of :func:`stft`, called with the same arguments.

    Args:
        input: (B, N, T) or (N, T), complex.
        n_fft: Points of a transform.
        hop_length: From frame to frame; ``n_fft // 4`` if left out.
        win_length: Of the window; ``n_fft`` if left out.
        window: (win_length,); ones if left out.
        center: The signal was padded on both sides, which is cut off again.
        normalized: The transform was divided by ``sqrt(n_fft)``.
        onesided: Only non-negative frequencies are given; by default, if N is not n_fft.
        length: Of the result, which is cut or filled with zeros; else what the frames reach.
        return_complex: The signal is complex.

    Returns:
        Tensor (B, L) or (L,).

    Raises:
        RuntimeError: The arguments do not fit together, or windows leave a point uncovered.
    """
    if not input.is_complex():
        raise RuntimeError(
            f"istft requires a complex-valued input tensor; got {input.dtype}. Convert pairs of "
            "numbers with lowtide.view_as_complex()."
        )
    if input.ndim not in (2, 3) or not input.numel():
        raise RuntimeError(
            "istft: expected a tensor (B, N, T) or (N, T) with elements; got shape "
            f"{tuple(input.shape)}."
        )
    hop, span = _sizes("istft", n_fft, hop_length, win_length, window)
    x = input if input.ndim == 3 else input.unsqueeze(0)
    given, count = x.shape[1:]
    onesided = given != n_fft if onesided is None else onesided
    expected = n_fft // 2 + 1 if onesided else n_fft
    if given != expected:
        raise RuntimeError(
            f"istft: expected the frequency dimension (2nd to the last) of the input tensor to "
            f"match n_fft={n_fft} with onesided={bool(onesided)}, {expected}; got {given}."
        )
    if return_complex and onesided:
        raise RuntimeError("Cannot have onesided output if window or input is complex.")
    if window is not None and window.is_complex() and not return_complex:
        raise RuntimeError("istft: a complex window needs return_complex=True.")
    x = x.transpose(1, 2)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = _fft_c2c(x, dims=(2,), norm=norm, inverse=True)
    else:
        half = x if onesided else x.narrow(2, 0, n_fft // 2 + 1)
        frames = _fft_c2r(half, dims=(2,), size=n_fft, norm=norm)
    whole = _whole(window, span, n_fft, frames)
    if whole is None:
        whole = frames.new_ones((n_fft,), dtype=frames.dtype.to_real())
    total = (count - 1) * hop + n_fft
    signal = _fold_sum(frames * whole, shape=(x.shape[0], total), dim=1, size=n_fft, step=hop)
    squares = (whole * whole).expand(count, n_fft)
    envelope = _fold_sum(squares, shape=(total,), dim=0, size=n_fft, step=hop)
    start = n_fft // 2 if center else 0
    stop = total - (n_fft // 2 if center else 0) if length is None else start + length
    kept = max(0, min(stop, total) - start)
    signal, envelope = signal.narrow(1, start, kept), envelope.narrow(0, start, kept)
    least = envelope.detach().abs().amin().item() if kept and x.device.type != "meta" else 1.0
    if least <= 1e-11:
        raise RuntimeError(
            f"istft: the windows overlap add to {least} somewhere, which cannot be divided by. "
            "Use shorter hops, or a window without zeros."
        )
    out = signal / envelope
    if length is not None and length > kept:
        out = pad(out, (0, length - kept))
    return out if input.ndim == 3 else out.squeeze(0)
