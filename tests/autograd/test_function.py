"""``autograd.Function``: what users may do in forward and backward, and what they are told."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.autograd import Function
from lowtide.autograd.function import once_differentiable


def leaf(*values: float) -> lt.Tensor:
    return lt.tensor(list(values), dtype=lt.float64, requires_grad=True)


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor, note=None):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None, None


class Product(Function):
    """The form with setup_context."""

    @staticmethod
    def forward(a, b, scale=1.0):
        return a * b * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, ctx.scale = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        ga = g * b * ctx.scale if ctx.needs_input_grad[0] else None
        gb = g * a * ctx.scale if ctx.needs_input_grad[1] else None
        return ga, gb, None


def test_forward_and_backward():
    x = leaf(3.0)
    y = Square.apply(x)
    assert y.tolist() == [9.0]
    y.sum().backward()
    assert x.grad.tolist() == [6.0]


def test_the_node_has_the_class_name():
    y = Square.apply(leaf(1.0))
    assert y.grad_fn.name() == "SquareBackward"
    assert type(y.grad_fn).__name__ == "SquareBackward"
    assert y.grad_fn.next_functions[0][0].name() == "AccumulateGrad"


def test_gradients_agree_with_finite_differences_twice():
    x = leaf(0.5, -1.5)
    assert lt.autograd.gradcheck(Square.apply, (x,))
    assert lt.autograd.gradgradcheck(Square.apply, (x,))


def test_arguments_that_are_no_tensors():
    x = leaf(3.0)
    Scale.apply(x, 4.0, "note").sum().backward()
    assert x.grad.tolist() == [4.0]


def test_setup_context_takes_defaults_and_keywords():
    a, b = leaf(3.0), leaf(5.0)
    y = Product.apply(a, b=b, scale=2.0)
    assert y.tolist() == [30.0]
    y.sum().backward()
    assert (a.grad.tolist(), b.grad.tolist()) == ([10.0], [6.0])


def test_keywords_need_setup_context():
    with pytest.raises(TypeError, match="no keyword arguments"):
        Square.apply(x=leaf(1.0))


def test_needs_input_grad_tells_which_gradients_are_wanted():
    a = leaf(3.0)
    y = Product.apply(a, lt.tensor([5.0], dtype=lt.float64), 1.0)
    assert y.grad_fn.needs_input_grad == (True, False, False)
    y.sum().backward()
    assert a.grad.tolist() == [5.0]


def test_forward_is_not_recorded():
    class Look(Function):
        @staticmethod
        def forward(ctx, x):
            assert not lt.is_grad_enabled()
            assert not (x * 2).requires_grad
            return x * 2

        @staticmethod
        def backward(ctx, g):
            assert not lt.is_grad_enabled()
            return g * 2

    x = leaf(1.0)
    Look.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0]


def test_nothing_is_recorded_without_need():
    assert Square.apply(lt.ones(2)).grad_fn is None
    with lt.no_grad():
        assert Square.apply(leaf(1.0)).grad_fn is None


def test_backward_is_recorded_under_create_graph():
    x = leaf(3.0)
    (g,) = lt.autograd.grad(Square.apply(Square.apply(x)).sum(), x, create_graph=True)
    assert g.tolist() == [108.0]
    (h,) = lt.autograd.grad(g.sum(), x)
    assert h.tolist() == [108.0]


def test_a_saved_output_leads_back_to_its_function():
    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            out = x.exp()
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, g):
            (out,) = ctx.saved_tensors
            return g * out

    x = leaf(0.3, 1.0)
    assert lt.autograd.gradcheck(Exp.apply, (x,))
    assert lt.autograd.gradgradcheck(Exp.apply, (x,))


def test_a_saved_intermediate_is_a_constant():
    class Shifted(Function):
        @staticmethod
        def forward(ctx, x):
            middle = x + 1
            ctx.save_for_backward(middle, None)
            return middle * middle

        @staticmethod
        def backward(ctx, g):
            middle, nothing = ctx.saved_tensors
            assert nothing is None
            assert not middle.requires_grad
            return g * 2 * middle

    x = leaf(2.0)
    Shifted.apply(x).sum().backward()
    assert x.grad.tolist() == [6.0]


def test_only_tensors_are_saved():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, 3)
            return x * 1

    with pytest.raises(TypeError, match="can only save variables, but argument 1 is of type int"):
        Wrong.apply(leaf(1.0))


def test_a_saved_tensor_that_was_written_is_noticed():
    x = leaf(2.0) * 1
    y = Square.apply(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match=r"SquareBackward.*modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensors_go_with_the_graph():
    y = Square.apply(leaf(2.0))
    node = y.grad_fn
    assert node.saved_tensors[0].tolist() == [2.0]
    assert [v.label for v in node.saved] == ["Square.saved_tensors[0]"]
    y.sum().backward()
    assert node.saved == ()
    with pytest.raises(lt.GradientError, match="second time"):
        y.sum().backward()


def test_saved_tensors_pass_through_saved_tensors_hooks():
    seen = []
    x = leaf(2.0)
    with lt.autograd.graph.saved_tensors_hooks(
        lambda t: seen.append(t.tolist()) or t.tolist(),
        lambda values: lt.tensor(values, dtype=lt.float64),
    ):
        y = Square.apply(x)
    assert seen == [[2.0]]
    y.sum().backward()
    assert x.grad.tolist() == [4.0]


def test_several_outputs_and_missing_gradients():
    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, ga, gb):
            assert isinstance(ga, lt.Tensor)
            return ga * 2 + gb * 3

    x = leaf(1.0)
    a, b = Two.apply(x)
    assert (a.output_nr, b.output_nr) == (0, 1)
    b.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [3.0]
    (a * b).sum().backward()
    assert x.grad.tolist() == [15.0]


def test_gradients_that_are_not_materialized_are_none():
    class Two(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, ga, gb):
            assert ga is None
            return gb * 3

    x = leaf(1.0)
    _, b = Two.apply(x)
    b.sum().backward()
    assert x.grad.tolist() == [3.0]


def test_outputs_that_are_no_tensors():
    class Mixed(Function):
        @staticmethod
        def forward(ctx, x):
            return "text", x * 2, None

        @staticmethod
        def backward(ctx, *grads):
            assert grads[0] is None
            assert grads[2] is None
            return grads[1] * 2

    x = leaf(1.0)
    text, y, nothing = Mixed.apply(x)
    assert (text, nothing) == ("text", None)
    y.sum().backward()
    assert x.grad.tolist() == [2.0]


def test_integer_outputs_and_marked_outputs_have_no_gradient():
    class Parts(Function):
        @staticmethod
        def forward(ctx, x):
            mask = x * 0 + 1
            ctx.mark_non_differentiable(mask)
            return x * 2, mask, (x * 2).to(lt.int64)

        @staticmethod
        def backward(ctx, g, *rest):
            return g * 2

    x = leaf(1.0)
    y, mask, count = Parts.apply(x)
    assert y.requires_grad
    assert not mask.requires_grad
    assert not count.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [2.0]


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_a_dirty_input_gets_the_function_as_its_history():
    x = leaf(3.0)
    y = x * 1
    z = Double.apply(y)
    assert z is y
    assert y.grad_fn.name() == "DoubleBackward"
    assert y._version == 1
    (y * y).sum().backward()
    assert x.grad.tolist() == [24.0]


def test_a_dirty_view_rewrites_the_history_of_its_base():
    x = leaf(3.0, 5.0)
    base = x * 1
    Double.apply(base[:1])
    assert base.grad_fn.name() == "CopySlices"
    base.sum().backward()
    assert x.grad.tolist() == [2.0, 1.0]


def test_a_dirty_leaf_is_refused():
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        Double.apply(leaf(1.0))


def test_a_dirty_input_must_be_returned():
    class Forgets(Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x * 1

    with pytest.raises(RuntimeError, match="dirty"):
        Forgets.apply(leaf(1.0) * 1)


def test_an_input_returned_as_it_is_becomes_another_tensor():
    class Reverse(Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return -g

    x = leaf(3.0)
    y = Reverse.apply(x)
    assert y is not x
    assert x.is_leaf
    assert y.data_ptr() == x.data_ptr()
    (y * x).sum().backward()
    assert x.grad.tolist() == [0.0]


def test_a_view_of_an_input_may_be_returned():
    class Tail(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.size = x.numel()
            return x[1:]

        @staticmethod
        def backward(ctx, g):
            return lt.cat([lt.zeros(1, dtype=g.dtype), g * 10])

    x = leaf(1.0, 2.0)
    Tail.apply(x).sum().backward()
    assert x.grad.tolist() == [0.0, 10.0]


def returning(*grads):
    class Custom(Function):
        @staticmethod
        def forward(ctx, x, factor):
            return x * factor

        @staticmethod
        def backward(ctx, g):
            return tuple(g if r == "g" else r for r in grads)

    return lambda: Custom.apply(leaf(1.0, 2.0), 2.0).sum().backward()


def test_too_few_gradients():
    with pytest.raises(RuntimeError, match=r"incorrect number of gradients \(expected 2, got 1\)"):
        returning("g")()


def test_too_many_gradients():
    with pytest.raises(RuntimeError, match=r"incorrect number of gradients \(expected 2, got 3\)"):
        returning("g", None, "g")()


def test_none_at_the_end_may_be_too_many():
    returning("g", None, None)()


def test_a_gradient_for_something_that_is_no_tensor():
    with pytest.raises(RuntimeError, match="different than None at position 2"):
        returning("g", "g")()


def test_a_gradient_that_is_no_tensor():
    with pytest.raises(RuntimeError, match="expected Variable or None"):
        returning(3.0, None)()


def test_a_gradient_of_another_shape():
    with pytest.raises(RuntimeError, match="invalid gradient at index 0"):
        returning(lt.ones(3, dtype=lt.float64), None)()


def test_none_is_no_gradient():
    class Stops(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return None

    x = leaf(1.0)
    Stops.apply(x * 1).sum().backward()
    assert x.grad is None


def test_once_differentiable_refuses_the_second_derivative():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            assert not lt.is_grad_enabled()
            (x,) = ctx.saved_tensors
            return g * 2 * x

    x = leaf(3.0)
    y = Once.apply(x)
    (g,) = lt.autograd.grad((y * y).sum(), x, create_graph=True)
    assert g.tolist() == [108.0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_a_function_is_not_instantiated():
    with pytest.raises(RuntimeError, match=r"Square\.apply"):
        Square()


def test_a_missing_backward_says_so():
    class Half(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 0.5

    with pytest.raises(NotImplementedError, match="must implement either the backward"):
        Half.apply(leaf(1.0)).sum().backward()


def test_attributes_of_the_context_reach_backward_and_the_node():
    y = Scale.apply(leaf(1.0), 7.0, None)
    assert y.grad_fn.factor == 7.0


def test_a_function_nests_in_forward():
    class Outer(Function):
        @staticmethod
        def forward(ctx, x):
            with lt.enable_grad():
                inner = x.detach().requires_grad_()
                out = Square.apply(inner).sum()
            (ctx.g,) = lt.autograd.grad(out, inner)
            return out.detach()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.g

    x = leaf(3.0)
    Outer.apply(x).backward()
    assert x.grad.tolist() == [6.0]


def test_recompute_is_on_unless_the_class_says_otherwise():
    assert Square.recompute

    class Fixed(Square):
        recompute = False

    assert not Fixed.recompute
    assert Fixed.apply(leaf(1.0)).grad_fn.function is Fixed
