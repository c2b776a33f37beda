"""Memory formats and layouts are names that code may use; every result is contiguous in C order."""

import copy
import pickle

import numpy as np
import pytest

import lowtide as lt

FORMATS = [lt.contiguous_format, lt.preserve_format, lt.channels_last, lt.channels_last_3d]


def test_formats_print_copy_and_pickle_as_themselves():
    for each in (*FORMATS, lt.strided):
        assert repr(each) == f"lowtide.{each.name}"
        assert copy.deepcopy(each) is each
        assert pickle.loads(pickle.dumps(each)) is each
    assert all(isinstance(f, lt.memory_format) for f in FORMATS)
    assert isinstance(lt.strided, lt.layout)


def test_a_tensor_is_strided():
    assert lt.ones(2).layout is lt.strided
    for other in ("is_sparse", "is_quantized", "is_nested"):
        assert getattr(lt.ones(2), other) is False
    assert lt.zeros(2, layout=lt.strided).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("wanted", FORMATS, ids=lambda f: f.name)
def test_whatever_the_format_a_result_is_in_c_order(wanted):
    x = lt.arange(24.0).reshape(1, 2, 3, 4).permute(0, 3, 1, 2)
    for y in (
        x.clone(memory_format=wanted),
        x.contiguous(memory_format=wanted),
        x.double().to(lt.float32, memory_format=wanted),
        x.double(memory_format=wanted),
        lt.zeros_like(x, memory_format=wanted) + x,
    ):
        assert y.is_contiguous()
        assert y.tolist() == x.tolist()


def test_is_contiguous_tells_how_the_elements_lie():
    rows = lt.ones(2, 3, 4, 5)
    pixels = lt.ones(2, 4, 5, 3).permute(0, 3, 1, 2)  # channels innermost
    assert rows.is_contiguous(memory_format=lt.contiguous_format)
    assert not rows.is_contiguous(memory_format=lt.channels_last)
    assert pixels.is_contiguous(memory_format=lt.channels_last)
    assert not pixels.is_contiguous()
    volume = lt.ones(2, 4, 5, 6, 3).permute(0, 4, 1, 2, 3)
    assert volume.is_contiguous(memory_format=lt.channels_last_3d)
    assert not volume.is_contiguous(memory_format=lt.channels_last)  # of four dims


def test_one_channel_or_one_pixel_is_in_both_orders():
    for shape in ((2, 1, 4, 5), (2, 3, 1, 1)):
        x = lt.ones(*shape)
        assert x.is_contiguous()
        assert x.is_contiguous(memory_format=lt.channels_last)


def test_gaps_are_no_format():
    x = lt.tensor(np.ones((2, 4, 5, 6))).permute(0, 3, 1, 2)[:, :3]
    assert not x.is_contiguous(memory_format=lt.channels_last)
