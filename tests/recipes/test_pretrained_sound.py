"""Pretrained models that listen, rebuilt with lowtide's layers, say what the originals say.

A voice's embedding (LSTM) and a detector of speech (convolutions and an LSTM cell). The files come
from the package index; where it is out of reach, these tests skip and say what was tried.
"""

from __future__ import annotations

import importlib
import io

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn

# Recipes are run, never imported; their way to files is what is used here.
fetch = importlib.import_module("lowtide.recipes.data.fetch")

pytestmark = pytest.mark.deep

# Resemblyzer: which voice is it?
RESEMBLYZER = fetch.Wheel(
    "resemblyzer==0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"
)
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
SILERO = fetch.Wheel(
    "silero-vad==6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"
)
# The probability of speech in each 32 ms of what vowel() returns.
# Source: silero_vad.jit of the same package in PyTorch 2.13.0 (CPU, float32). Its weights at 16 kHz
# equal those of the ONNX file bit for bit; the safetensors file beside them holds others. The same
# layers in PyTorch give these numbers bit for bit too, and in float64 others, up to 1.2e-6 away.
SPEECH = [
    0.00166968, 0.0068836, 0.88209063, 0.97465318, 0.96367282, 0.98239982, 0.97990364, 0.97358501,
    0.96003759, 0.94805902, 0.90891445, 0.95413828, 0.94488758, 0.84605068,
]  # fmt: skip
# The names in the file, and what Silero calls the same.
NAMES = {
    "model.stft.forward_basis_buffer": "spectrum.weight",
    "model.encoder.": "encoder.",
    ".reparam_conv.": ".",
    "model.decoder.rnn.": "rnn.",
    "model.decoder.decoder.2.": "output.",
}


def protobuf(message):
    """The (number, value) fields of a message; strings, packed numbers and messages as bytes.

    Source: "Encoding" in the documentation of Protocol Buffers.
    """
    at = 0

    def varint():  # seven bits a byte, the lowest first; the eighth says that more follow
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
        else:
            size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
            assert at + size <= len(message), f"field {number} ends past its message"
            yield number, message[at : at + size]
            at += size


def initializers(model):
    """The float32 weights of an ONNX file by name.

    Source: onnx.proto. A model's graph is its field 7, a graph's weights are its fields 5; of a
    weight, 1 is a dimension, 2 the type (1: float32), 8 the name, 9 the data, little-endian.
    """
    found = {}
    (graph,) = (value for number, value in protobuf(model) if number == 7)
    for weight in (value for number, value in protobuf(graph) if number == 5):
        fields = list(protobuf(weight))
        shape, one = [value for number, value in fields if number == 1], dict(fields)
        assert one[2] == 1
        found[one[8].decode()] = lt.tensor(np.frombuffer(one[9], "<f4").reshape(shape))
    return found


class Silero(nn.Module):
    """The last 64 samples and the next 512, (N, 576), to the probability of speech, (N, 1)."""

    def __init__(self):
        super().__init__()
        self.spectrum = nn.Conv1d(1, 258, 256, 128, bias=False)  # cosines, then sines, windowed
        self.encoder = nn.ModuleList(
            nn.Conv1d(inputs, outputs, 3, stride, padding=1)
            for inputs, outputs, stride in ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        )
        self.rnn = nn.LSTMCell(128, 128)
        self.output = nn.Conv1d(128, 1, 1)

    def forward(self, x, state=None):
        real, imaginary = self.spectrum(F.pad(x[:, None], (0, 64), "reflect")).chunk(2, dim=1)
        x = (real**2 + imaginary**2).sqrt()
        for conv in self.encoder:
            x = F.relu(conv(x))
        state = self.rnn(x.squeeze(-1), state)
        return self.output(F.relu(state[0])[..., None]).sigmoid().squeeze(-1), state


def vowel():
    """An "a" of a voice that rises from 120 Hz, between two silences: 14 x 512 samples."""
    t = np.arange(14 * 512) / 16000
    sound = 0.0
    for k in range(1, 30):
        formants = ((700, 90, 1.0), (1200, 110, 0.6), (2600, 160, 0.3))
        level = sum(g / (1 + ((120 * k - at) / width) ** 2) for at, width, g in formants)
        sound = sound + level * np.sin(2 * np.pi * k * (120 * t + 20 * t**2))
    swell = np.clip((t - 0.064) / 0.05, 0, 1) * np.clip((0.4 - t) / 0.05, 0, 1)
    return (0.1 * swell * sound).astype(np.float32)


def test_speech_is_heard_where_the_original_hears_it(files):
    (model,) = files("silero", SILERO, "silero_vad/data/silero_vad_16k_op15.onnx")
    weights = {}
    for name, weight in initializers(model).items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = weight
    net = Silero()
    net.load_state_dict(weights)
    sound = lt.cat([lt.zeros(64), lt.tensor(vowel())])  # before the first sample was silence
    state, heard = None, []
    with lt.no_grad():
        for start in range(0, len(sound) - 64, 512):
            probability, state = net(sound[None, start : start + 576], state)
            heard.append(probability.item())
    assert np.abs(np.subtract(heard, SPEECH)).max() <= 3.8e-6
