"""einops takes lowtide's tensors, whichever was imported first; lowtide does not import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt

einops = pytest.importorskip("einops")
ROOT = Path(__file__).resolve().parents[1]


def fresh(code):
    """The output of a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_lowtide_does_not_import_einops():
    assert fresh("import sys, lowtide; print('einops' in sys.modules)") == "False"


@pytest.mark.parametrize("order", ["lowtide, einops", "einops, lowtide"])
def test_the_order_of_imports_does_not_matter(order):
    code = (
        f"import {order}; import sys; x = einops.rearrange(lowtide.ones(2, 3), 'a b -> b a');"
        "from lowtide.framework.interop.einops import _ImportHook;"
        "left = [f for f in sys.meta_path if isinstance(f, _ImportHook)];"
        "print(type(x).__name__, tuple(x.shape), left)"
    )
    assert fresh(code) == "Tensor (3, 2) []"


ARRAY = np.random.default_rng(0).uniform(0.5, 1.5, (2, 6, 4, 3))
REARRANGED = [
    ("b c h w -> b h w c", {}),
    ("b (g c) h w -> b g c h w", {"g": 2}),
    ("b c h w -> b (h w) c", {}),
    ("b c (h p) w -> (b h) p w c", {"p": 2}),
    ("b c h w -> (b c h w)", {}),
    ("b ... -> ... b", {}),
]
REDUCED = [("b c h w -> b c", {}), ("b c (h p) w -> b h c", {"p": 2}), ("b c h w ->", {})]


@pytest.mark.parametrize(("pattern", "sizes"), REARRANGED)
def test_rearrange_gives_numpys_values_and_a_gradient(pattern, sizes):
    x = lt.tensor(ARRAY, requires_grad=True)
    out = einops.rearrange(x, pattern, **sizes)
    np.testing.assert_array_equal(out.detach().numpy(), einops.rearrange(ARRAY, pattern, **sizes))
    (out**2).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * ARRAY)


@pytest.mark.parametrize("how", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize(("pattern", "sizes"), REDUCED)
def test_reduce_gives_numpys_values_and_a_gradient(pattern, sizes, how):
    x = lt.tensor(ARRAY, requires_grad=True)
    out = einops.reduce(x, pattern, how, **sizes)
    expected = einops.reduce(ARRAY, pattern, how, **sizes)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-12)
    out.sum().backward()
    if how in ("max", "min"):
        assert x.grad.sum().item() == pytest.approx(max(out.numel(), 1))
    if how == "sum":
        assert (x.grad == 1).all()


def test_any_and_all_of_booleans():
    mask = lt.tensor(ARRAY > 0.7)
    for how in ("any", "all"):
        out = einops.reduce(mask, "b c h w -> b c", how)
        np.testing.assert_array_equal(out.numpy(), getattr((ARRAY > 0.7), how)((2, 3)))


def test_repeat_einsum_pack_and_parse_shape():
    x = lt.tensor(ARRAY, requires_grad=True)
    out = einops.repeat(x, "b c h w -> b c (h k) w r", k=2, r=3)
    assert out.shape == (2, 6, 8, 3, 3)
    out.sum().backward()
    assert (x.grad == 6).all()
    token = lt.ones(1, 1, 5, requires_grad=True)
    assert einops.repeat(token, "() n d -> b n d", b=4).shape == (4, 1, 5)
    product = einops.einsum(x, x, "b c h w, b d h w -> b c d")
    expected = einops.einsum(ARRAY, ARRAY, "b c h w, b d h w -> b c d")
    np.testing.assert_allclose(product.detach().numpy(), expected, rtol=1e-12)
    packed, shapes = einops.pack([x, x[:, :, :, 0]], "b c *")
    assert packed.shape == (2, 6, 16)
    assert [tuple(t.shape) for t in einops.unpack(packed, shapes, "b c *")] == [
        (2, 6, 4, 3),
        (2, 6, 4),
    ]
    assert einops.parse_shape(x, "b c _ w") == {"b": 2, "c": 6, "w": 3}
    assert einops.rearrange([x[0], x[1]], "b c h w -> c b h w").shape == (6, 2, 4, 3)


def test_a_wrong_pattern_is_an_einops_error():
    with pytest.raises(einops.EinopsError, match="Shape mismatch"):
        einops.rearrange(lt.ones(2, 3), "a (b c) -> a b c", b=2)


def test_layers_are_modules():
    from lowtide.nn.einops import EinMix, Rearrange, Reduce

    model = lt.nn.Sequential(
        Rearrange("b (h p) (w q) -> b (h w) (p q)", p=2, q=2),
        EinMix("b n i -> b n o", weight_shape="i o", bias_shape="o", i=4, o=3),
        Reduce("b n o -> b o", "mean"),
    )
    assert list(model.state_dict()) == ["1.weight", "1.bias"]
    x = lt.rand(2, 4, 6)
    out = model(x)
    patches = einops.rearrange(x.numpy(), "b (h p) (w q) -> b (h w) (p q)", p=2, q=2)
    weight, bias = (p.detach().numpy() for p in model.parameters())
    expected = (patches @ weight + bias.reshape(-1)).mean(1)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-5)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert repr(model[0]) == "Rearrange('b (h p) (w q) -> b (h w) (p q)', p=2, q=2)"


def test_rearranging_on_meta_holds_no_bytes():
    x = lt.ones(2, 6, 4, 3, device="meta")
    assert einops.rearrange(x, "b (g c) h w -> (b h w) g c", g=2).shape == (24, 2, 3)
