"""Recurrent modules: names, dropout, packing, precision, bytes; values are in the case table."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import lowtide as lt
from lowtide.nn.utils import rnn

KINDS = {"RNN": 1, "GRU": 3, "LSTM": 4}
by_kind = pytest.mark.parametrize("kind", KINDS)


def values(t):
    return t.detach().numpy()


def test_names_shapes_and_repr_of_a_projected_lstm():
    layer = lt.nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True, proj_size=2)
    shapes = {n: tuple(p.shape) for n, p in layer.named_parameters()}
    assert shapes == {
        "weight_ih_l0": (20, 3), "weight_hh_l0": (20, 2), "bias_ih_l0": (20,), "bias_hh_l0": (20,),
        "weight_hr_l0": (2, 5), "weight_ih_l0_reverse": (20, 3), "weight_hh_l0_reverse": (20, 2),
        "bias_ih_l0_reverse": (20,), "bias_hh_l0_reverse": (20,), "weight_hr_l0_reverse": (2, 5),
        "weight_ih_l1": (20, 4), "weight_hh_l1": (20, 2), "bias_ih_l1": (20,), "bias_hh_l1": (20,),
        "weight_hr_l1": (2, 5), "weight_ih_l1_reverse": (20, 4), "weight_hh_l1_reverse": (20, 2),
        "bias_ih_l1_reverse": (20,), "bias_hh_l1_reverse": (20,), "weight_hr_l1_reverse": (2, 5),
    }  # fmt: skip
    text = "LSTM(3, 5, proj_size=2, num_layers=2, batch_first=True, bidirectional=True)"
    assert repr(layer) == text
    assert [len(w) for w in layer.all_weights] == [5, 5, 5, 5]
    assert layer.all_weights[1][0] is layer.weight_ih_l0_reverse
    layer.flatten_parameters()
    assert {n: tuple(p.shape) for n, p in layer.named_parameters()} == shapes


@by_kind
def test_initial_values_lie_within_the_bound(kind):
    for module in (getattr(lt.nn, kind)(5, 16, 2), getattr(lt.nn, f"{kind}Cell")(5, 16)):
        for p in module.parameters():
            assert 0.15 < p.abs().max().item() <= 0.25


@by_kind
def test_dropout_acts_between_layers_in_training_only(kind):
    layer = getattr(lt.nn, kind)(3, 4, 2, dropout=1.0)
    x = lt.randn(5, 2, 3)
    upper = getattr(lt.nn, kind)(4, 4)
    lower = getattr(lt.nn, kind)(3, 4)
    for name, p in layer.named_parameters():
        one = upper if "l1" in name else lower
        getattr(one, name.replace("l1", "l0")).data.copy_(p.detach())
    # All between is dropped: the upper layer sees zeros.
    np.testing.assert_array_equal(values(layer(x)[0]), values(upper(lt.zeros(5, 2, 4))[0]))
    layer.eval()
    np.testing.assert_array_equal(values(layer(x)[0]), values(upper(lower(x)[0])[0]))


@by_kind
def test_final_states_are_the_last_outputs(kind):
    layer = getattr(lt.nn, kind)(3, 4, 2, bidirectional=True)
    x = lt.randn(5, 2, 3)
    out, last = layer(x)
    h = last[0] if kind == "LSTM" else last
    np.testing.assert_array_equal(values(h[2]), values(out[-1, :, :4]))
    np.testing.assert_array_equal(values(h[3]), values(out[0, :, 4:]))


@by_kind
def test_a_sequence_in_two_pieces_is_the_sequence(kind):
    layer = getattr(lt.nn, kind)(3, 4, 2).double()
    x = lt.randn(7, 2, 3, dtype=lt.float64)
    whole, end = layer(x)
    first, state = layer(x[:4])
    second, last = layer(x[4:], state)
    pieces = np.concatenate([values(first), values(second)])
    np.testing.assert_allclose(pieces, values(whole), rtol=1e-12)
    for a, b in zip(last, end, strict=True):
        np.testing.assert_allclose(values(a), values(b), rtol=1e-12)


@by_kind
def test_a_cell_step_by_step_is_the_layer(kind):
    layer = getattr(lt.nn, kind)(3, 4).double()
    cell = getattr(lt.nn, f"{kind}Cell")(3, 4).double()
    cell.load_state_dict({n.replace("_l0", ""): p for n, p in layer.state_dict().items()})
    x = lt.randn(6, 2, 3, dtype=lt.float64)
    out, _ = layer(x)
    state = None
    for t in range(6):
        state = cell(x[t], state)
        h = state[0] if kind == "LSTM" else state
        np.testing.assert_allclose(values(h), values(out[t]), rtol=1e-12)


@by_kind
def test_frozen_weights_get_no_gradient_and_others_the_same(kind):
    layer = getattr(lt.nn, kind)(3, 4).double()
    x = lt.randn(5, 2, 3, dtype=lt.float64)
    layer(x)[0].sum().backward()
    whole = {n: values(p.grad) for n, p in layer.named_parameters()}
    for kept in whole:
        layer.zero_grad()
        for n, p in layer.named_parameters():
            p.requires_grad_(n == kept)
        layer(x)[0].sum().backward()
        for n, p in layer.named_parameters():
            assert (p.grad is None) == (n != kept)
        np.testing.assert_allclose(values(getattr(layer, kept).grad), whole[kept], rtol=1e-12)


@by_kind
def test_a_copy_and_a_pickle_compute_the_same(kind):
    layer = getattr(lt.nn, kind)(3, 4, 2, bidirectional=True)
    x = lt.randn(5, 2, 3)
    out = values(layer(x)[0])
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(values(other(x)[0]), out)
        assert other.weight_ih_l0 is not layer.weight_ih_l0


@by_kind
def test_autocast_runs_in_bfloat16_and_other_mixtures_are_refused(kind):
    layer = getattr(lt.nn, kind)(3, 4)
    with pytest.raises(ValueError, match="does not match weight dtype"):
        layer(lt.zeros(5, 2, 3, dtype=lt.bfloat16))
    with lt.amp.autocast("cpu"):
        out, _ = layer(lt.randn(5, 2, 3))
        assert out.dtype is lt.bfloat16
        layer(out[..., :3])
    out.float().sum().backward()
    assert all(p.grad.dtype is lt.float32 for p in layer.parameters())


def test_two_layers_keep_six_numbers_per_unit_and_step_on_meta():
    layer = lt.nn.LSTM(8, 16, 2, device="meta")
    x = lt.empty(10, 4, 8, device="meta")
    before = lt.memory_allocated("meta")
    out, (h, c) = layer(x)
    row, state = 16 * 4, 4 * 16 * 4
    # Output, gates and cells of each layer; stacked final states.
    assert lt.memory_allocated("meta") - before == 2 * 10 * 4 * 6 * row + 4 * state
    assert (out.shape, h.shape, c.shape) == ((10, 4, 16), (2, 4, 16), (2, 4, 16))
    with lt.no_grad():
        before = lt.memory_allocated("meta")
        found = layer(x)
        assert lt.memory_allocated("meta") - before == 10 * 4 * row + 4 * state
        assert found[0].shape == out.shape


# Packing


def test_packing_goes_there_and_back_in_the_order_given():
    given = [lt.randn(n, 2) for n in (2, 5, 1, 3)]
    packed = rnn.pack_sequence(given, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [4, 3, 2, 1, 1]
    assert packed.sorted_indices.tolist() == [1, 3, 0, 2]
    assert packed.unsorted_indices.tolist() == [2, 0, 3, 1]
    for a, b in zip(rnn.unpack_sequence(packed), given, strict=True):
        np.testing.assert_array_equal(values(a), values(b))
    padded, lengths = rnn.pad_packed_sequence(packed, padding_value=-3.0, total_length=6)
    assert lengths.tolist() == [2, 5, 1, 3]
    assert padded.shape == (6, 4, 2)
    assert (padded[2:, 0] == -3).all()
    wide = packed.double()
    assert wide.data.dtype is lt.float64
    assert wide.sorted_indices is packed.sorted_indices
    assert packed.float() is packed
    assert packed.to("cpu") is packed
    assert not packed.is_cuda
    data, sizes, *_ = packed
    assert data is packed.data
    assert sizes is packed.batch_sizes


def test_states_of_packed_sequences_keep_the_order_given():
    layer = lt.nn.GRU(2, 3).double()
    given = [lt.randn(n, 2, dtype=lt.float64) for n in (2, 5, 1)]
    h0 = lt.randn(1, 3, 3, dtype=lt.float64)
    _, last = layer(rnn.pack_sequence(given, enforce_sorted=False), h0)
    for k, x in enumerate(given):
        _, alone = layer(x, h0[:, k])
        np.testing.assert_allclose(values(last[:, k]), values(alone), rtol=1e-12)


def test_left_padding_and_unpadding():
    given = [lt.tensor([1.0]), lt.tensor([2.0, 3.0])]
    assert rnn.pad_sequence(given, True, 0.0, "left").tolist() == [[0.0, 1.0], [2.0, 3.0]]
    padded = rnn.pad_sequence(given)
    assert padded.tolist() == [[1.0, 2.0], [0.0, 3.0]]
    parts = rnn.unpad_sequence(padded, lt.tensor([1, 2]))
    assert [p.tolist() for p in parts] == [[1.0], [2.0, 3.0]]


def test_batch_sizes_stay_on_the_cpu():
    with pytest.raises(ValueError, match="batch_sizes should always be on CPU"):
        rnn.PackedSequence(lt.zeros(3), lt.zeros(3, device="meta"))


def test_packing_on_meta_has_shapes_unless_they_hang_on_values():
    x = lt.empty(5, 3, 2, device="meta")
    layer = lt.nn.LSTM(2, 4, device="meta")
    out, _ = layer(rnn.pack_padded_sequence(x, [5, 2, 1]))
    padded, lengths = rnn.pad_packed_sequence(out)
    assert padded.shape == (5, 3, 4)
    assert lengths.tolist() == [5, 2, 1]
    unsorted = rnn.pack_padded_sequence(x, [1, 5, 2], enforce_sorted=False)
    with pytest.raises(NotImplementedError, match="enforce_sorted=True"):
        rnn.pad_packed_sequence(unsorted)
