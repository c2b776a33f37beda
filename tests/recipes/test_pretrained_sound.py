"""Pretrained models that listen, rebuilt with lowtide's layers, say what the originals say.

A voice's embedding (LSTM) and a detector of speech (convolutions and an LSTM cell). The files come
from the package index; where it is out of reach, these tests skip and say what was tried.
"""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn

pytestmark = pytest.mark.slow

# Resemblyzer: which voice is it?
RESEMBLYZER = (
    "resemblyzer==0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"
)  # fmt: skip
# Of two sweeps, one rising and one falling: how their unit vectors begin, their cosine, and their
# dot products with cos(0), cos(1), ..., which no wrong number among the 256 leaves alone.
# Source: the file's weights in PyTorch 2.13.0's LSTM and Linear, in float64.
VOICES = [
    [0.036932253391, 0.0036435709676, 0.0127260098891, 0.0, 0.0, 0.0188751946683],
    [0.0866807413304, 0.0397771396863, 0.0, 0.0, 0.0, 0.0205734607054],
]
VOICES_COSINE = 0.776058607915057
VOICES_SUMS = [-0.076112733501139, -0.049669859489021]


class VoiceEncoder(nn.Module):
    """Spectrograms (N, 160, 40) to unit vectors (N, 256). The names are those of the file."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        _, (h, _) = self.lstm(x)
        return F.normalize(F.relu(self.linear(h[-1])), dim=1)


def spectrograms():
    """A band that rises through the 40 channels in 160 frames, and one that falls."""
    t, channel = np.arange(160)[:, None] / 160, np.arange(40)
    return np.stack([0.05 * np.exp(-0.5 * ((channel - 40 * p) / 3) ** 2) for p in (t, 1 - t)])


@pytest.mark.parametrize(("dtype", "within"), [(lt.float32, 8e-7), (lt.float64, 1e-12)])
def test_voices_have_their_original_vectors(files, dtype, within):
    (blob,) = files("resemblyzer", RESEMBLYZER, "resemblyzer/pretrained.pt")
    # Saved on a GPU, with the optimizer's state; the similarity's scale served its training.
    weights = lt.load(io.BytesIO(blob), map_location="cpu")["model_state"]
    assert weights.pop("similarity_weight").shape == weights.pop("similarity_bias").shape == (1,)
    encoder = VoiceEncoder()
    encoder.load_state_dict(weights)
    encoder.to(dtype)
    with lt.no_grad():
        vectors = encoder(lt.tensor(spectrograms(), dtype=dtype)).numpy()
    assert np.abs(vectors[:, :6] - VOICES).max() <= within
    assert vectors[0] @ vectors[1] == pytest.approx(VOICES_COSINE, abs=within)
    # Rounding adds up over 256 terms of either sign: its bound grows with the root of their count.
    off = vectors.astype(np.float64) @ np.cos(np.arange(256)) - VOICES_SUMS
    assert np.abs(off).max() <= 16 * within


# Silero VAD: does somebody speak?
SILERO = (
    "silero-vad==6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"
)  # fmt: skip
# Its probabilities of speech, 32 ms at a time.
# Source: silero_vad.jit of the same package, whose 16 kHz weights are those of the ONNX file, in
# PyTorch 2.13.0 (CPU, float32). The safetensors file beside them holds other weights.
SPEECH = []
SWEEP = []


def messages(blob):
    """The (number, value) fields of a protobuf message; of strings, bytes and messages the bytes.

    Source: "Encoding", Protocol Buffers documentation.
    """
    at = 0

    def varint():  # seven bits a byte, the lowest first; the eighth says that more follow
        nonlocal at
        value = shift = 0
        while True:
            byte = blob[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(blob):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        size = {1: lambda: 8, 2: varint, 5: lambda: 4}[wire]()
        if at + size > len(blob):
            raise ValueError(f"field {number} ends {at + size - len(blob)} bytes past its message")
        yield number, blob[at : at + size]
        at += size


def initializers(blob):
    """The weights of an ONNX model by name.

    Source of the numbers: onnx.proto3. ModelProto has its graph in field 7, GraphProto its
    initializers in 5; of a TensorProto 1 is a dim, 2 the type (1: float32), 8 the name and 9 the
    data, little-endian.
    """
    found = {}
    (graph,) = (value for number, value in messages(blob) if number == 7)
    for tensor in (value for number, value in messages(graph) if number == 5):
        fields = list(messages(tensor))
        shape = [value for number, value in fields if number == 1]
        one = dict(fields)
        assert one[2] == 1
        found[one[8].decode()] = lt.tensor(np.frombuffer(one[9], "<f4").reshape(shape))
    return found


class Spectrum(nn.Module):
    """Magnitudes (N, 129, frames) of 256 samples every 128, by the file's windowed sines."""

    def __init__(self):
        super().__init__()
        self.register_buffer("forward_basis_buffer", lt.zeros(258, 1, 256))

    def forward(self, x):
        x = F.pad(x[:, None], (0, 64), mode="reflect")
        real, imaginary = F.conv1d(x, self.forward_basis_buffer, stride=128).chunk(2, dim=1)
        return (real**2 + imaginary**2).sqrt()


def named(**children):
    """A container whose children have those names."""
    return nn.ModuleDict(children)


class Silero(nn.Module):
    """576 samples and a state to the probability of speech and the next state.

    The names are those of the file.
    """

    def __init__(self):
        super().__init__()
        self.stft = Spectrum()
        shapes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        self.encoder = nn.Sequential(
            *(named(reparam_conv=nn.Conv1d(i, o, 3, s, padding=1)) for i, o, s in shapes)
        )
        self.decoder = nn.ModuleDict({"rnn": nn.LSTMCell(128, 128)})
