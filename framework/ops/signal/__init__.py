"""Signal processing: FFT, STFT, windows, finite differences."""
