"""Statements that cannot be recorded run as they are written; those around them are recorded."""

from __future__ import annotations

import gc
import importlib.util
import inspect
import random
import warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.capture.division.building import CannotDivide
from lowtide.framework.capture.division.statements import Body
from lowtide.nn import functional as F

CALLS = 24


class Run:
    """A model, its optimizer, and what Python keeps of its steps."""

    def __init__(self) -> None:
        lt.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.optimizer = lt.optim.AdamW(self.model.parameters(), lr=0.01)
        self.losses: list[float] = []
        self.texts: list[str] = []
        self.state: dict[str, Any] = {"n": 0, "total": 0.0}
        self.steps = 0
        self.kept: list[Any] = []

    def loss(self, x: Any, y: Any) -> Any:
        return F.cross_entropy(self.model(x), y)


# Steps: ``# apart`` ends each line that a compiled step runs as it is written.


def appends(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    run.losses.append(loss.item())  # apart


def prints(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    if epoch % 3 == 0:  # apart
        run.texts.append(f"{epoch}: {loss:.4f}")
    return loss


def accuracy(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    logits = run.model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()
    right = (logits.argmax(1) == y).float().mean()
    value = loss.item()  # apart
    run.losses.append(value)  # apart
    run.state["total"] += value  # apart
    return {"right": right, "loss": value}


def counts(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.steps += 1  # apart
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    run.state["n"] += 1  # apart
    return loss.item()


def warms_up(run: Run, x: Any, y: Any, epoch: int) -> Any:
    for group in run.optimizer.param_groups:  # apart
        group["lr"] = 0.01 * min(1.0, (epoch + 1) / 10)
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    return loss


def draws(run: Run, x: Any, y: Any, epoch: int) -> Any:
    keep = x.abs().sum(1) > 0
    picked = x[keep]  # apart
    run.texts.append(str(picked.shape))
    with lt.no_grad():
        hidden = run.model(x)
    return hidden * 2


def leaves_early(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    if not lt.isfinite(loss) or epoch % 7 == 6:  # apart
        return None
    run.optimizer.step()
    return loss


def forward_apart(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    run.losses.append(loss.item())  # apart
    loss.backward()
    run.optimizer.step()


def keeps_tensors(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    logits = run.model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    run.optimizer.step()
    run.kept.append(loss.detach())  # no kernel: set apart without a warning
    run.state["last"] = logits.detach()  # apart
    return loss


class Report:
    def __init__(self, loss: Any, count: int) -> None:
        self.loss, self.count = loss, count


def returns_an_object(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    loss.backward()
    run.optimizer.step()
    return Report(loss.detach(), len(x))  # apart


STEPS = [
    returns_an_object,
    keeps_tensors,
    appends,
    prints,
    accuracy,
    counts,
    warms_up,
    draws,
    leaves_early,
    forward_apart,
]


def batches() -> Iterator[tuple[Any, Any]]:
    generator = lt.Generator().manual_seed(1)
    for _ in range(CALLS):
        yield (
            lt.randn(5, 6, generator=generator),
            lt.randint(0, 3, (5,), generator=generator),
        )


def of(run: Run, results: list[Any]) -> Any:
    """Everything that the steps have left, as bytes and texts."""
    plain = [
        {k: v.tolist() if isinstance(v, lt.Tensor) else v for k, v in r.items()}
        if isinstance(r, dict)
        else r.tolist()
        if isinstance(r, lt.Tensor)
        else r
        for r in (r.loss if isinstance(r, Report) else r for r in results)
    ]
    parameters = [p.detach().numpy().tobytes() for p in run.model.parameters()]
    gradients = [None if p.grad is None else p.grad.tolist() for p in run.model.parameters()]
    state = {k: v.tolist() if isinstance(v, lt.Tensor) else v for k, v in run.state.items()}
    kept = [t.tolist() for t in run.kept]
    return plain, parameters, gradients, run.losses, run.texts, state, run.steps, kept


def repeated(step: Callable[..., Any], run: Run) -> Any:
    lt.manual_seed(3)
    return of(run, [step(run, x, y, epoch) for epoch, (x, y) in enumerate(batches())])


@pytest.mark.parametrize("step", STEPS, ids=lambda f: f.__name__)
def test_steps_with_statements_of_python_are_replayed_around_them(step: Any) -> None:
    expected = repeated(step, Run())
    compiled = lt.compile(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert repeated(compiled, Run()) == expected
    assert compiled.replays > 0
    lines, first = inspect.getsourcelines(step)
    marked = {first + k for k, text in enumerate(lines) if text.rstrip().endswith("# apart")}
    told = [t for t in compiled.reasons if t.startswith("line ")]
    assert marked <= {int(n.split()[0]) for t in told for n in t.split("line ")[1:]}, told
    assert sum("What lies around it is recorded" in str(w.message) for w in caught) <= 1
    assert all(w.category is lt.CaptureWarning for w in caught)


def test_a_method_is_divided_for_each_object() -> None:
    class Trainer(Run):
        @lt.compile
        def step(self, x: Any, y: Any) -> None:
            self.optimizer.zero_grad()
            loss = self.loss(x, y)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())

    one, other = Trainer(), Trainer()

    def train() -> None:
        for x, y in batches():
            one.step(x, y)
            other.step(x, y)

    with pytest.warns(lt.CaptureWarning, match=r"step: line \d+ \(self.losses.append"):
        train()
    assert len(one.losses) == len(other.losses) == CALLS
    assert one.step.replays > CALLS // 2
    assert other.step.replays > CALLS // 2


def used() -> Any:
    """A weak reference to a compiled function that was divided, and nothing else."""
    run = Run()

    def local(x: Any, y: Any) -> None:
        run.optimizer.zero_grad()
        loss = run.loss(x, y)
        loss.backward()
        run.optimizer.step()
        run.losses.append(loss.item())

    step = lt.compile(local)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        for x, y in batches():
            step(x, y)
    assert step.replays > 0
    return weakref.ref(step)


def test_a_divided_function_goes_with_its_last_reference() -> None:
    gc.collect()
    gc.disable()
    try:
        before = lt.memory_allocated()
        assert used()() is None
        assert lt.memory_allocated() == before
    finally:
        gc.enable()


def test_fullgraph_divides_nothing() -> None:
    step, run = lt.compile(appends, fullgraph=True), Run()
    x, y = next(batches())
    step(run, x, y, 0)
    with pytest.raises(lt.CaptureError, match="item, after it has changed"):
        step(run, x, y, 0)


def test_explain_tells_all_pieces() -> None:
    run = Run()
    x, y = next(batches())
    text = lt.compiler.explain(accuracy, run, x, y, 0)
    assert "(value = loss.item()) runs as it is written" in text
    assert "called anew: AdamW.step" in text
    assert text.count("accuracy (lines ") == 1  # the others run as they are written


def test_an_error_in_a_piece_has_the_line_of_the_file() -> None:
    run, step = Run(), lt.compile(appends)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch, (x, y) in enumerate(batches()):
            step(run, x, y, epoch)
        with pytest.raises(RuntimeError) as caught:
            step(run, lt.randn(5, 7), y, 0)
    code = appends.__code__
    frames = [e for e in caught.traceback if e.frame.code.raw.co_filename == code.co_filename]
    assert any(e.lineno + 1 == code.co_firstlineno + 2 for e in frames)
    assert any(e.name == "appends" for e in frames)


def test_a_replay_compares_what_the_pieces_of_a_function_read() -> None:
    step, run = lt.compile(appends, check=2), Run()
    expected = repeated(appends, Run())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert repeated(step, run) == expected


# Statements that are there for what they do


def speaks(run: Run, x: Any, y: Any, epoch: int) -> Any:
    run.texts.append("begin")
    run.optimizer.zero_grad()
    loss = run.loss(x, y)
    note(run, "forward")
    loss.backward()
    run.optimizer.step()
    run.texts.append("end")
    return loss.item()


def note(run: Run, text: str) -> None:
    run.texts.append(text)


def test_statements_that_only_act_run_in_each_call_without_a_warning() -> None:
    step, run, plain = lt.compile(speaks), Run(), Run()
    with warnings.catch_warnings():
        warnings.simplefilter("error", lt.CaptureWarning)
        warnings.filterwarnings("ignore", "compile: speaks.*: its backward goes through")
        found = repeated(step, run)
    assert found == repeated(speaks, plain)
    assert run.texts == ["begin", "forward", "end"] * CALLS
    assert step.replays > CALLS // 2


def whole(run: Run, x: Any, y: Any) -> Any:
    run.model.train()
    run.optimizer.zero_grad()
    outputs = []
    outputs.append(run.model(x))
    loss = F.cross_entropy(outputs[0], y)
    loss.backward()
    nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
    run.optimizer.step()
    return loss


def test_a_step_of_lowtide_alone_stays_in_one_piece() -> None:
    step, run = lt.compile(whole), Run()
    for x, y in batches():
        step(run, x, y)
    assert step.replays == CALLS - 3
    assert step.apart == 0


def properties(run: Run, x: Any) -> Any:
    SHY.value.append(1)
    return x * 2


class Shy:
    @property
    def value(self) -> Any:
        raise AssertionError("nobody may ask")


SHY = Shy()


def test_looking_at_what_is_called_runs_nothing(monkeypatch: Any) -> None:
    monkeypatch.setattr(Shy, "value", property(lambda self: Asked()))
    step = lt.compile(properties)
    for _ in range(3):
        step(Run(), lt.ones(2))
    assert Asked.count == 3


class Asked:
    count = 0

    def __init__(self) -> None:
        Asked.count += 1

    def append(self, _: Any) -> None:
        pass


# What a call changes or returns that a replay would not


def changes_a_dict(x: Any, given: dict[str, Any]) -> Any:
    given["n"] = 1
    return x * 2


def changes_an_inner_list(x: Any, given: dict[str, Any]) -> Any:
    given.setdefault("names", []).append("a")
    return x * 2


def returns_its_dict(x: Any, given: dict[str, Any]) -> Any:
    return x * 2, given


def returns_a_list_twice(x: Any, given: dict[str, Any]) -> Any:
    found = [x * 2]
    return found, {"again": found}


def sets_a_mode(x: Any, given: dict[str, Any]) -> Any:
    with lt.enable_grad():
        y = x * 2
    lt.set_grad_enabled(bool(given))
    return y


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [changes_a_dict, changes_an_inner_list, returns_its_dict, returns_a_list_twice, sets_a_mode],
    ids=lambda f: f.__name__,
)
def test_containers_and_modes_are_as_after_the_plain_call(function: Any, grad: bool) -> None:
    outcomes = []
    for f in (function, lt.compile(function)):
        found = []
        for _ in range(6):
            given: dict[str, Any] = {}
            x = lt.ones(2, requires_grad=grad)
            with warnings.catch_warnings(), lt.enable_grad():
                warnings.simplefilter("ignore", lt.CaptureWarning)
                result = f(x, given)
                enabled = lt.is_grad_enabled()
            same = (
                isinstance(result, tuple) and result[1] is given,
                isinstance(result, tuple) and result[0] is result[1].get("again"),
            )
            found.append((given, enabled, same))
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


def test_results_that_share_memory_are_written_as_in_eager_or_refused() -> None:
    def base_and_view(x: Any) -> Any:
        h = x * 3
        return h, h.view(-1)

    def siblings(x: Any) -> Any:
        h = x * 3
        return h.view(-1), h[0]

    def one_twice(x: Any) -> Any:
        h = x * 3
        return h, h

    for function in (base_and_view, siblings, one_twice):
        f = lt.compile(function)
        for k in range(6):
            x = lt.arange(6.0).reshape(2, 3).requires_grad_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lt.CaptureWarning)
                one, other = f(x)
            assert (one is other) == (function is one_twice)
            one.mul_(2)
            try:
                (other * 5).sum().backward()
            except RuntimeError as error:
                assert (function, k > 0) == (base_and_view, True)
                assert "a compiled function is a view" in str(error)
                continue
            expected = 30.0 if other.ndim == 1 or function is one_twice else 15.0
            assert x.grad is not None
            assert x.grad.flatten()[0].item() == expected


# What cannot be cut


def generates(x: Any) -> Any:
    yield x


def sees_itself(x: Any) -> Any:
    y = 1
    return locals(), x, y


def closure_sees_changes(x: Any) -> Any:
    def inner() -> Any:
        return y

    y = 1
    return inner() + x


def matches(x: Any) -> Any:
    match x:
        case 1:
            return 2
    return 3


EXECUTED: dict[str, Any] = {}
exec("def from_text(x):\n    y = x\n    return y\n", EXECUTED)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (generates, "generator"),
        (sees_itself, "sees its variables"),
        (closure_sees_changes, "a nested function sees y change"),
        (matches, "match"),
        (EXECUTED["from_text"], "source"),
        (lambda x: x, "no function with statements"),
    ],
)
def test_functions_that_are_not_cut(function: Any, why: str) -> None:
    with pytest.raises(CannotDivide, match=why):
        Body(function)


def test_a_file_that_has_changed_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text("def f(x):\n    y = x + 1\n    return y\n")
    module = loaded(file)
    file.write_text("def f(x):\n    y = x + 2\n    return y\n")
    with pytest.raises(CannotDivide, match="not what runs"):
        Body(module.f)


def test_no_cut_where_a_variable_may_be_without_a_value(tmp_path: Path) -> None:
    file = tmp_path / "maybe.py"
    file.write_text("def f(x):\n    if x:\n        y = 1\n    z = 2\n    return y + z\n")
    with pytest.raises(CannotDivide, match="y may be without a value"):
        Body(loaded(file).f).pieces([0, 1])


def loaded(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Drawn functions: however they are cut, the pieces do what the function does


class Draw:
    """The text of a function, drawn from a seed; its calls write down what they see."""

    NAMES = "abcde"

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.assigned = {"a", "b"}

    def value(self) -> str:
        pick = self.rng.choice
        known = sorted(self.assigned)
        return pick(
            [
                pick(known),
                f"{pick(known)} + {self.rng.randint(1, 5)}",
                f"note({pick(known)})",
                f"sum([{pick(known)} for a in range(3)])",
                f"(lambda b: b + 1)({pick(known)})",
                f"GLOBAL[0] * {pick(known)}",
            ]
        )

    def statement(self, depth: int) -> list[str]:
        pick = self.rng.choice
        kind = pick(["assign"] * 5 + ["add", "note", "if", "for", "with", "del", "return", "try"])
        name = pick(self.NAMES)
        before = set(self.assigned)
        if kind == "add" and name in self.assigned:
            return [f"{name} += {self.value()}"]
        if kind == "note":
            return [f"note({self.value()})"]
        if kind == "del" and name in self.assigned and name not in "ab":
            self.assigned.discard(name)
            return [f"del {name}"]
        if kind == "return" and depth and self.rng.random() < 0.5:
            return [f"return {self.value()}"]
        if kind in ("if", "for", "with", "try") and depth < 2:
            head = {
                "if": f"if ({self.value()}) % 2:",
                "for": f"for {name} in range({self.rng.randint(0, 2)}):",
                "with": "with noting():",
                "try": "try:",
            }[kind]
            body = self.block(depth + 1)
            inside = self.assigned
            self.assigned = inside if kind == "with" else before & inside
            if kind == "try":
                return [head, *body, "except NameError:", "    note(-1)"]
            return [head, *body]
        text = f"{name} = {self.value()}"
        self.assigned.add(name)
        return [text]

    def block(self, depth: int) -> list[str]:
        lines = [x for _ in range(self.rng.randint(1, 3)) for x in self.statement(depth)]
        return [f"    {x}" for x in lines]

    def text(self) -> str:
        lines = [x for _ in range(self.rng.randint(2, 7)) for x in self.statement(0)]
        head = self.rng.choice(
            ["a, b=1", "a, b=2, /", "a, /, *, b=3", "a, *rest, b=4, **others", "*, a=1, b=2"]
        )
        lines.append(f"return {self.value()}")
        body = "\n".join(f"    {x}" for x in lines)
        return f"def f({head}):\n    '''Drawn.'''\n{body}\n"


PRELUDE = """
from contextlib import contextmanager

SEEN = []
GLOBAL = [3]


def note(x):
    SEEN.append(x)
    return len(SEEN)


@contextmanager
def noting():
    SEEN.append("in")
    yield
    SEEN.append("out")


"""


def outcome(module: Any, call: Callable[..., Any], a: int) -> Any:
    module.SEEN.clear()
    keywords = {"a": a} if "(*," in DRAWN_HEAD[module.__name__] else {}
    args = () if keywords else (a,)
    try:
        result: Any = call(*args, **keywords)
    except (NameError, UnboundLocalError) as error:
        result = type(error)
    return result, list(module.SEEN)


DRAWN_HEAD: dict[str, str] = {}


def in_pieces(body: Body, starts: list[int]) -> Callable[..., Any]:
    pieces, bind = body.pieces(starts), body.binder()

    def call(*args: Any, **kwargs: Any) -> Any:
        values = bind(*args, **kwargs)
        for piece in pieces:
            done, found = piece.function(*[values[n] for n in piece.takes])
            if done:
                return found
            values.update(zip(piece.results, found, strict=True))
            for name in piece.ends:
                values.pop(name, None)
        return None

    return call


@pytest.mark.parametrize("part", range(4))
def test_pieces_of_drawn_functions_do_what_the_functions_do(part: int, tmp_path: Path) -> None:
    cut = refused = 0
    for seed in range(part * 40, part * 40 + 40):
        text = Draw(seed).text()
        file = tmp_path / f"drawn{seed}.py"
        file.write_text(PRELUDE + text)
        module = loaded(file)
        DRAWN_HEAD[module.__name__] = text.partition("\n")[0]
        body = Body(module.f)
        expected = [outcome(module, module.f, a) for a in range(3)]
        for chosen in range(1 << (body.count - 1)):
            starts = [0, *(k for k in range(1, body.count) if chosen >> (k - 1) & 1)]
            assert all(i < k for i, k in pairwise(starts))
            try:
                call = in_pieces(body, starts)
            except CannotDivide:
                refused += 1
                continue
            cut += len(starts) > 1
            assert [outcome(module, call, a) for a in range(3)] == expected, (text, starts)
    assert cut > 500
    assert cut > refused
