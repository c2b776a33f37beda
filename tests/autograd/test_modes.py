"""Modes: as a context, as a decorator, around generators, per thread."""

from __future__ import annotations

import threading

import pytest

import lowtide as lt


def recorded() -> bool:
    return (lt.ones(1, requires_grad=True) * 2).requires_grad


def test_no_grad_records_nothing_and_ends():
    with lt.no_grad():
        assert not lt.is_grad_enabled()
        assert not recorded()
    assert recorded()


def test_no_grad_ends_after_an_error():
    with pytest.raises(ZeroDivisionError), lt.no_grad():
        1 / 0  # noqa: B018
    assert lt.is_grad_enabled()


def test_enable_grad_inside_no_grad():
    with lt.no_grad():
        with lt.enable_grad():
            assert recorded()
        assert not recorded()


@pytest.mark.parametrize("mode", [lt.no_grad, lt.no_grad(), lt.inference_mode, lt.inference_mode()])
def test_modes_decorate_with_and_without_parentheses(mode):
    @mode
    def inside() -> bool:
        return recorded() if not lt.is_inference_mode_enabled() else False

    assert inside() is False
    assert inside.__name__ == "inside"
    assert recorded()


def test_a_decorated_function_can_call_itself():
    @lt.no_grad()
    def down(n: int) -> bool:
        return recorded() if n == 0 else down(n - 1)

    assert down(5) is False
    assert recorded()


def test_set_grad_enabled_acts_at_once_and_as_a_context():
    lt.set_grad_enabled(False)
    assert not lt.is_grad_enabled()
    lt.set_grad_enabled(True)
    assert lt.is_grad_enabled()
    with lt.set_grad_enabled(False):
        assert not recorded()
        with lt.set_grad_enabled(True):
            assert recorded()
    assert recorded()


def test_set_grad_enabled_decorates_without_touching_the_outside():
    @lt.set_grad_enabled(False)
    def inside() -> bool:
        return recorded()

    assert lt.is_grad_enabled()
    assert inside() is False
    assert lt.is_grad_enabled()


def test_a_mode_holds_inside_a_generator_and_not_for_its_consumer():
    @lt.no_grad()
    def values():
        received = yield recorded()
        yield (recorded(), received)
        return "end"

    g = values()
    assert next(g) is False
    assert recorded()
    assert g.send("sent") == (False, "sent")
    assert recorded()
    with pytest.raises(StopIteration) as stop:
        next(g)
    assert stop.value.value == "end"


def test_a_decorated_generator_sees_what_is_thrown_into_it():
    @lt.no_grad()
    def careful():
        try:
            yield 1
        except KeyError:
            yield lt.is_grad_enabled()

    g = careful()
    next(g)
    assert g.throw(KeyError()) is False
    assert lt.is_grad_enabled()


def test_a_mode_does_not_decorate_a_class():
    with pytest.raises(TypeError, match="decorates functions"):
        lt.no_grad()(type("Model", (), {}))


def test_modes_belong_to_their_thread():
    seen = []
    with lt.no_grad():
        thread = threading.Thread(target=lambda: seen.append(recorded()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_a_no_grad_middleman_blocks_the_path():
    x = lt.tensor(2.0, requires_grad=True)
    with lt.no_grad():
        y = x * x
    z = x * y
    z.backward()
    assert x.grad.item() == 4.0


def test_factories_that_ask_for_grad_get_it_under_no_grad():
    with lt.no_grad():
        assert lt.ones(1, requires_grad=True).requires_grad


def test_an_inference_tensor_is_not_saved_for_backward():
    with lt.inference_mode():
        a = lt.ones(2) * 1
    assert a.is_inference()
    w = lt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        w * a
    (w * a.clone()).sum().backward()
    assert w.grad.tolist() == [1.0, 1.0]


def test_an_inference_tensor_is_not_written_outside_its_mode():
    with lt.inference_mode():
        a = lt.ones(2) * 1
        a.add_(1)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        a.add_(1)


def test_inference_mode_turns_recording_off_and_can_be_turned_off():
    with lt.inference_mode():
        assert not recorded()
        with lt.inference_mode(False):
            assert not lt.is_inference_mode_enabled()
    with lt.inference_mode(False):
        assert recorded()


def test_enable_grad_has_no_effect_in_inference_mode():
    with lt.inference_mode(), lt.enable_grad():
        assert not recorded()


def test_requires_grad_needs_a_floating_dtype():
    with pytest.raises(RuntimeError, match="floating point"):
        lt.ones(2, dtype=lt.int64).requires_grad_()


def test_requires_grad_of_a_result_cannot_be_turned_off():
    y = lt.ones(2, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="leaf"):
        y.requires_grad_(False)


def test_factories_make_inference_tensors_too():
    with lt.inference_mode():
        made = [lt.ones(2), lt.tensor([1.0]), lt.randn(2), lt.empty_strided((2,), (1,)), lt.eye(2)]
        parameter = lt.zeros(2, requires_grad=True)
    assert all(t.is_inference() for t in made)
    assert parameter.requires_grad
    with pytest.raises(RuntimeError, match="inference tensor"):
        made[0].add_(1)


def test_a_view_of_an_inference_tensor_is_one():
    with lt.inference_mode():
        a = lt.ones(4)
    view = a.view(2, 2)
    assert view.is_inference()
    assert view[0].is_inference()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        view.add_(1)


def test_inference_mode_false_ends_no_grad_too():
    with lt.no_grad(), lt.inference_mode(False):
        assert recorded()
    with lt.inference_mode(), lt.inference_mode(False):
        assert recorded()
