"""The pretrained encoder of ``sentiment`` gives the published sentence vectors."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F

# Recipes are run, never imported; the encoder is what is tested here.
data = importlib.import_module("lowtide.recipes.data")
sentiment = importlib.import_module("lowtide.recipes.sentiment")

SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
)
# Of the first sentence: its pieces, and how its unit vector begins. Source: the weights of
# all-MiniLM-L6-v2 in NumPy and in the transformers library, which agree to 2.3e-6.
PIECES = [101, 1037, 2158, 2003, 5983, 2833, 1012, 102]
VECTOR = [0.0332416, 0.00440607, -0.00627694, 0.04837868, -0.13870226, -0.03361738]
COSINES = [0.7553, -0.1050]  # with the second and the third


@pytest.mark.slow
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
