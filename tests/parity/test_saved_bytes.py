"""What blocks keep for backward, beside what PyTorch's graph keeps of the same blocks."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.saved_bytes import BLOCKS, kept_by_lowtide, kept_by_torch  # noqa: E402

pytestmark = pytest.mark.parity

AT_MOST = {  # lowtide's bytes as a share of PyTorch's
    "GPT block, softmax(q k^T) written out, dropout 0.1": 0.763,
    "GPT block, scaled_dot_product_attention, dropout 0.1": 0.382,
    "nn.TransformerEncoderLayer, dropout 0.1": 0.26,
    "ResNet basic block": 0.82,
    "nn.LSTM over 64 steps": 0.5,
    "MLP, ReLU": 1.03,  # one bit an element beside a result that the next layer keeps
    "MLP, ReLU and dropout 0.1": 0.42,
}


def test_the_figure_that_the_target_is_measured_by():
    assert kept_by_torch("GPT block, softmax(q k^T) written out, dropout 0.1") == 44_056_576


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_keeps_at_most_its_share_of_pytorchs(name):
    assert kept_by_lowtide(name) <= AT_MOST[name] * kept_by_torch(name)
