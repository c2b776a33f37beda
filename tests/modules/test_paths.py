"""The import paths of PyTorch's modules that public code uses."""

from __future__ import annotations

import importlib

import pytest

import lowtide as lt
from lowtide import nn

PATHS = {
    "batchnorm._BatchNorm": nn.BatchNorm2d,
    "batchnorm._NormBase": nn.InstanceNorm2d,
    "instancenorm._InstanceNorm": nn.InstanceNorm1d,
    "conv._ConvNd": nn.ConvTranspose2d,
    "conv._ConvTransposeNd": nn.ConvTranspose1d,
    "loss._Loss": nn.TripletMarginLoss,
    "loss._WeightedLoss": nn.CrossEntropyLoss,
    "pooling._MaxPoolNd": nn.MaxPool2d,
    "pooling._AdaptiveAvgPoolNd": nn.AdaptiveAvgPool2d,
    "dropout._DropoutNd": nn.Dropout2d,
    "module.Module": nn.Linear,
    "linear.Linear": nn.Linear,
    "sparse.Embedding": nn.Embedding,
    "fold.Unfold": nn.Unfold,
    "pixelshuffle.PixelShuffle": nn.PixelShuffle,
    "activation.ReLU6": nn.ReLU6,
}


@pytest.mark.parametrize("path", PATHS)
def test_a_class_is_found_by_attribute_and_by_import(path):
    file, name = path.split(".")
    base = getattr(getattr(lt.nn.modules, file), name)
    assert base is getattr(importlib.import_module(f"lowtide.nn.modules.{file}"), name)
    assert issubclass(PATHS[path], base)


def test_batch_norm_is_told_from_instance_norm():
    assert not issubclass(nn.InstanceNorm2d, lt.nn.modules.batchnorm._BatchNorm)


def test_pairs():
    from lowtide.nn.modules.utils import _pair, _triple

    assert _pair(3) == (3, 3)
    assert _pair([1, 2]) == (1, 2)
    assert _triple("a") == ("a",)  # a sequence stays as it is
