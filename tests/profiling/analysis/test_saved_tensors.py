"""What blocks of real models keep for backward, against formulas, to the byte."""

from __future__ import annotations

import pytest

import lowtide as lt
from benchmarks.saved_bytes import (
    BLOCKS,
    EXPECTED,
    EXPECTED_IN_REGIONS,
    REGIONS,
    A,
    B,
    E,
    H,
    S,
    kept_by_lowtide,
    kept_in_region,
)

FUSED = "GPT block, scaled_dot_product_attention, dropout 0.1"


def of_pytorch(e, m):
    """What PyTorch's eager mode keeps of the block written out: m bytes for an element's mask.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198), with statistics of LayerNorm in float32.
    """
    return S * B * H * (16 * e + 2 * m) + A * S * S * B * (2 * e + m) + 16 * S * B


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_keeps_what_its_formula_says(name):
    assert kept_by_lowtide(name) == EXPECTED[name]


def test_a_gpt_block_with_dropout_keeps_at_most_half_of_pytorchs():
    assert of_pytorch(E, E) == 44_056_576  # measured with PyTorch too: tests/parity
    assert kept_by_lowtide(FUSED) == 16_826_368 <= 0.5 * 44_056_576


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_without_a_second_matrix_product_keeps_what_its_formula_says(name):
    assert kept_in_region(name) == EXPECTED_IN_REGIONS[name]


def test_written_out_half_of_pytorchs_suffices_without_a_second_matrix_product():
    assert kept_in_region("written out, save_matmuls") <= 0.5 * 44_056_576


@pytest.mark.parametrize("name", [FUSED, "nn.TransformerEncoderLayer, dropout 0.1"])
def test_the_ledger_of_the_cpu_says_the_same(name):
    block, _ = BLOCKS[name](lt)
    block()
    before = lt.memory_allocated("cpu")
    result = block()
    assert lt.memory_allocated("cpu") - before == EXPECTED[name] + result.nbytes


def test_no_mask_and_no_matrix_of_scores_is_among_the_values():
    with lt.device("meta"):
        block, _ = BLOCKS[FUSED](lt)
        saved = lt.profiling.saved_tensors(block)
    assert max(s.nbytes for s in saved) == 4 * S * B * H * E  # of the perceptron
    assert not [s for s in saved if s.shape[-3:] == (A, S, S) or "dropout" in s.label]
