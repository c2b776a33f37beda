"""Windows against SciPy's, and the short-time Fourier transform against its definition."""

import numpy as np
import pytest
from scipy.signal import windows as reference

import lowtide as lt
from lowtide.framework import testing
from lowtide.signal import windows

CASES = {
    "hann": {},
    "hamming": {},
    "blackman": {},
    "bartlett": {},
    "nuttall": {},
    "cosine": {},
    "kaiser": {"beta": 5.0},
    "gaussian": {"std": 2.5},
    "exponential": {"tau": 1.5},
    "general_hamming": {"alpha": 0.6},
    "general_cosine": {"a": [0.5, 0.3, 0.2]},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 10])
@pytest.mark.parametrize("sym", [True, False])
def test_windows_are_scipys(name, length, sym):
    ours = getattr(windows, name)(length, sym=sym, dtype=lt.float64, **CASES[name])
    theirs = getattr(reference, name)(length, sym=sym, **CASES[name])
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett"])
@pytest.mark.parametrize("periodic", [True, False])
def test_functions_of_lowtide_are_periodic_unless_told_otherwise(name, periodic):
    made = getattr(lt, f"{name}_window")(9, periodic, dtype=lt.float64)
    expected = getattr(windows, name)(9, sym=not periodic, dtype=lt.float64)
    np.testing.assert_array_equal(made.numpy(), expected.numpy())
    default = getattr(lt, f"{name}_window")(9)
    assert default.dtype is lt.float32
    assert getattr(lt, f"{name}_window")(9, dtype=lt.float16).dtype is lt.float16


def test_the_kaiser_window_and_the_weights_of_hamming():
    made = lt.kaiser_window(8, False, 3.0, dtype=lt.float64)
    np.testing.assert_allclose(made.numpy(), reference.kaiser(8, 3.0))
    made = lt.hamming_window(4, True, 0.6, 0.4, dtype=lt.float64)
    np.testing.assert_allclose(made.numpy(), [0.2, 0.6, 1.0, 0.6])


def test_what_is_no_window_is_refused():
    with pytest.raises(RuntimeError, match="non-negative; got -1"):
        lt.hann_window(-1)
    with pytest.raises(RuntimeError, match="floating point"):
        lt.hann_window(3, dtype=lt.int64)
    with pytest.raises(ValueError, match="float32 or float64"):
        windows.hann(3, dtype=lt.bfloat16)
    with pytest.raises(ValueError, match="Standard deviation"):
        windows.gaussian(3, std=0)
    with pytest.raises(ValueError, match="Tau"):
        windows.exponential(3, tau=-1)
    with pytest.raises(ValueError, match="sym=False"):
        windows.exponential(3, center=1.0)
    with pytest.raises(ValueError, match="beta"):
        windows.kaiser(3, beta=-1)
    with pytest.raises(TypeError, match="Coefficients"):
        windows.general_cosine(3, a=0.5)
    with pytest.raises(ValueError, match="empty"):
        windows.general_cosine(3, a=[])


SIGNAL = np.random.default_rng(0).standard_normal((2, 37))


def by_definition(x, n, hop, window, center, norm):
    if center:
        x = np.pad(x, ((0, 0), (n // 2, n // 2)), mode="reflect")
    starts = range(0, x.shape[1] - n + 1, hop)
    frames = [np.fft.fft(x[:, s : s + n] * window, norm=norm) for s in starts]
    return np.stack(frames, -1)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("onesided", [True, False])
def test_each_frame_is_transformed(center, normalized, onesided):
    window = np.zeros(8)
    window[1:7] = reference.hann(6, sym=False)
    expected = by_definition(SIGNAL, 8, 3, window, center, "ortho" if normalized else None)
    got = lt.stft(
        lt.tensor(SIGNAL),
        8,
        3,
        6,
        lt.hann_window(6, dtype=lt.float64),
        center=center,
        normalized=normalized,
        onesided=onesided,
        return_complex=True,
    )
    np.testing.assert_allclose(got.numpy(), expected[:, : 5 if onesided else 8], atol=1e-12)


@pytest.mark.parametrize("window", [None, "hann"])
@pytest.mark.parametrize("onesided", [True, False])
def test_the_inverse_gives_the_signal_back(window, onesided):
    w = None if window is None else lt.hann_window(8, dtype=lt.float64)
    options = {"hop_length": 2, "window": w, "onesided": onesided}
    spectrum = lt.tensor(SIGNAL).stft(8, return_complex=True, **options)
    back = spectrum.istft(8, length=37, **options)
    np.testing.assert_allclose(back.numpy(), SIGNAL, atol=1e-12)
    longer = spectrum.istft(8, length=50, **options)
    assert longer.shape == (2, 50)
    assert (longer[:, 44:] == 0).all()
    one = spectrum[0].istft(8, **options)
    np.testing.assert_allclose(one.numpy(), SIGNAL[0, :36], atol=1e-12)


def test_a_complex_signal_has_two_sides():
    z = lt.tensor(SIGNAL[:1] + 1j * SIGNAL[1:])
    spectrum = lt.stft(z, 6, 2)
    assert spectrum.shape[1] == 6
    back = lt.istft(spectrum, 6, 2, length=37, return_complex=True)
    np.testing.assert_allclose(back.numpy(), z.numpy(), atol=1e-12)


def test_gradients_of_both():
    x = lt.tensor(SIGNAL[0, :14], requires_grad=True)
    w = lt.tensor(reference.hamming(6), requires_grad=True)

    def there(xs):
        return [lt.stft(xs[0], 8, 3, 6, xs[1], return_complex=False)]

    testing.check_gradient(there, [x, w])
    testing.check_second_gradient(there, [x, w])
    frames = lt.stft(x.detach(), 8, 3, 6, w.detach(), return_complex=False).requires_grad_()

    def back(xs):
        return [lt.istft(lt.view_as_complex(xs[0]), 8, 3, 6, xs[1])]

    testing.check_gradient(back, [frames, w])
    testing.check_second_gradient(back, [frames, w])


def test_frames_are_a_view_and_the_ledger_sees_the_rest():
    x = lt.zeros(1, 4096)
    before = lt.memory_allocated()
    out = lt.stft(x, 64, 16, center=False, return_complex=True)
    assert lt.memory_allocated() - before == out.nbytes == 33 * 253 * 8


def test_what_does_not_fit_a_transform_is_refused():
    x = lt.zeros(16)
    with pytest.raises(RuntimeError, match="return_complex"):
        lt.stft(x, 4)
    with pytest.raises(RuntimeError, match="hop_length"):
        lt.stft(x, 4, 0, return_complex=True)
    with pytest.raises(RuntimeError, match="win_length"):
        lt.stft(x, 4, win_length=5, return_complex=True)
    with pytest.raises(RuntimeError, match="1D window"):
        lt.stft(x, 4, window=lt.ones(3), return_complex=True)
    with pytest.raises(RuntimeError, match="n_fft <= 16"):
        lt.stft(x, 17, center=False, return_complex=True)
    with pytest.raises(RuntimeError, match="onesided"):
        lt.stft(x.to(lt.complex64), 4, onesided=True)
    spectrum = lt.stft(x, 4, return_complex=True)
    with pytest.raises(RuntimeError, match="complex"):
        lt.istft(spectrum.real, 4)
    with pytest.raises(RuntimeError, match="frequency dimension"):
        lt.istft(spectrum, 6, onesided=True)
    with pytest.raises(RuntimeError, match="overlap"):
        lt.istft(spectrum, 4, window=lt.zeros(4))
