"""Generator of type stubs for editors and type checkers, from the op declarations.

Ops are declared once, and the registry makes functions, methods and operators of them while it is
imported. A type checker, which imports nothing, sees none of that. So this file writes down what it
cannot see: ``tensor.pyi`` (the class in ``tensor.py`` plus every installed method) and
``ops/__init__.pyi`` (every public function). ``python -m lowtide.framework.codegen.stubs`` rewrites
both, ``--check`` fails if one is out of date; a test holds them current.

A parameter has the type of its annotation. Without one, a tensor input takes a Tensor or a number,
a switch is a bool, and the rest is Any. A function returns a Tensor unless it is annotated, or
stands in ``RETURNS``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import tensor
from ..ops.registry import FUNCTIONS, OPS, Op
from ..tensor import Tensor

HERE = Path(__file__).parents[1]  # framework/
FILES = {"tensor.pyi": HERE / "tensor.pyi", "ops/__init__.pyi": HERE / "ops" / "__init__.pyi"}

# Compositions that are not annotated and do not return one Tensor.
RETURNS: dict[str, str] = {
    name: kind
    for kind, names in {
        "bool": "allclose equal is_tensor is_storage is_nonzero is_complex is_floating_point "
        "is_same_size is_signed is_inference is_conj is_neg",
        "int": "numel",
        "Any": "max min median mode sort topk kthvalue cummax cummin std_mean var_mean nonzero "
        "unique unique_consecutive where result_type numpy item tolist broadcast_shapes "
        "aminmax frexp slogdet lu qr svd eigh __array__ __dlpack__ __dlpack_device__ histogram "
        "to_dlpack type __iter__ __format__ __repr__ __reduce_ex__ __deepcopy__ __copy__",
        "tuple[Tensor, ...]": "split chunk unbind tensor_split hsplit vsplit dsplit meshgrid "
        "broadcast_tensors atleast_1d atleast_2d atleast_3d split_with_sizes align_tensors "
        "split_copy split_with_sizes_copy unbind_copy",
    }.items()
    for name in names.split()
}
# Inputs that take a number also where nothing is promoted.
SCALARS = {"other", "value", "exponent", "min", "max", "start", "end", "step"}
_DUNDERS = {
    "__repr__": "str",
    "__str__": "str",
    "__format__": "str",
    "__iter__": "Iterator[Tensor]",
    "__setitem__": "None",
    "__delitem__": "None",
    "__len__": "int",
    "__bool__": "bool",
}


class Writer:
    """Collects the lines of one stub file and the imports they need.

    A stub may define ``int`` or ``dtype`` (``Tensor.int``, ``Tensor.dtype``), and from then on the
    name no longer means the type. So a type whose name the stub defines goes by ``_int``.

    Args:
        dots: This package, as the stub writes it.
        itself: The stub's own module, as it would write it.
        defined: Names that the stub defines.
    """

    def __init__(self, dots: str, itself: str, defined: Iterable[str]) -> None:
        self.dots = dots
        self.itself = itself
        self.defined = set(defined)
        self.imports: dict[str, set[str]] = {}
        self.lines: list[str] = []

    def name(self, module: str, name: str) -> str:
        """Return the name of a type in the stub, and record its import."""
        alias = f"_{name}" if name in self.defined and name != "Tensor" else name
        if module == "builtins" and alias == name:
            return name
        module = module.replace("lowtide.framework", self.dots)
        if module != self.itself:
            self.imports.setdefault(module, set()).add(
                name if alias == name else f"{name} as {alias}"
            )
        return alias

    def type(self, value: Any) -> str:
        """Format an evaluated annotation."""
        if value is None or value is type(None):
            return "None"
        if value is Any:
            return self.name("typing", "Any")
        if value is ...:
            return "..."
        if isinstance(value, list):
            return f"[{', '.join(map(self.type, value))}]"
        origin, args = typing.get_origin(value), typing.get_args(value)
        if origin in (types.UnionType, typing.Union):
            return " | ".join(map(self.type, args))
        if origin is typing.Literal:
            return f"{self.name('typing', 'Literal')}[{', '.join(map(repr, args))}]"
        if origin is not None:
            return f"{self.type(origin)}[{', '.join(map(self.type, args))}]"
        if isinstance(value, type) and "<locals>" not in value.__qualname__:
            return self.name(value.__module__, value.__qualname__)
        return self.name("typing", "Any")

    def text(self, annotation: Any, scope: dict[str, Any]) -> str | None:
        """Format an annotation; return None if there is none."""
        if annotation is inspect.Parameter.empty:
            return None
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, {**vars(typing), **scope})
            except (NameError, TypeError, AttributeError):
                return self.name("typing", "Any")
        return self.type(annotation)

    def number(self) -> str:
        """Return the type of a tensor or Python number, a complex number to type checkers."""
        return f"{self.type(Tensor)} | {self.type(complex)}"

    def finish(self, header: str) -> str:
        """Return the text of the whole file."""
        imports = [
            f"from {module} import {', '.join(sorted(names))}"
            for module, names in sorted(self.imports.items())
        ]
        return "\n".join([header, "", *imports, "", *self.lines]).rstrip() + "\n"


HEADER = '"""Generated by ``python -m lowtide.framework.codegen.stubs``: do not edit."""'


# Signatures


def parameters(w: Writer, function: Any, op: Op | None, method: bool) -> Iterator[str]:
    """Format the parameters of a function for a stub."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    star = False
    for k, p in enumerate(inspect.signature(function).parameters.values()):
        if k == 0 and method and p.kind is not p.VAR_POSITIONAL:
            yield "self"
            if p.kind is p.POSITIONAL_ONLY:
                yield "/"
            continue
        kind = w.text(p.annotation, scope) or guess(w, p, op, first=k == 0)
        if p.kind is p.VAR_POSITIONAL:
            star = True
            yield "self" if k == 0 and method else f"*{p.name}: {kind}"
            if k == 0 and method:
                yield f"*{p.name}: {kind}"
        elif p.kind is p.VAR_KEYWORD:
            yield f"**{p.name}: {kind}"
        else:
            if p.kind is p.KEYWORD_ONLY and not star:
                star = True
                yield "*"
            yield f"{p.name}: {kind}" + (" = ..." if p.default is not p.empty else "")


def guess(w: Writer, p: inspect.Parameter, op: Op | None, first: bool) -> str:
    """Guess the type of a parameter without annotation."""
    if op is not None and p.name in op.inputs:
        number = op.promote not in (None, "same") or p.name in SCALARS
        plain = p.name == op.variadic or first or not number
        kind = "Tensor" if plain else w.number()
        return f"{kind} | None" if p.default is None else kind
    if p.name in ("input", "self") and first:
        return "Tensor"
    if p.name == "other":
        return w.number()
    if p.name == "out":
        return w.name("typing", "Any")
    if isinstance(p.default, bool):
        return w.name("builtins", "bool")
    return w.name("typing", "Any")


def returned(w: Writer, name: str, function: Any, op: Op | None) -> str:
    """Return the result type of a function."""
    if op is not None:
        if len(op.returns) == 1:
            return "Tensor"
        return f"{w.name('builtins', 'tuple')}[{', '.join(['Tensor'] * len(op.returns))}]"
    unwrapped = inspect.unwrap(function)
    scope = getattr(unwrapped, "__globals__", {})
    text = w.text(inspect.signature(function).return_annotation, scope)
    if text is not None:
        return text
    known = RETURNS.get(name) or _DUNDERS.get(name)
    if known is None:
        return "Tensor"
    namespace = {"Any": Any, "Tensor": Tensor, "Iterator": Iterator}
    return w.type(eval(known, {**vars(builtins), **namespace}))


def stub(
    w: Writer, name: str, function: Any, *, method: bool, indent: str = "", doc: str = ""
) -> list[str]:
    """Format the stub of one function or method; ``doc`` overrides its docstring."""
    op = getattr(function, "op", None)
    plain = name.removesuffix("_")
    twin = plain != name and not name.startswith("__")
    twin = twin and ("input" not in _names(function) or _names(function)[1:] == ["args", "kwargs"])
    if name.startswith("__i") and name not in ("__invert__", "__index__", "__iter__"):
        twin = True
    if twin and op is None:  # made of the out-of-place function, whose parameters it takes
        source = FUNCTIONS.get(plain) or Tensor.__dict__.get(plain)
        source = source or Tensor.__dict__.get(name.replace("__i", "__", 1), function)
        op = getattr(source, "op", None)
        taken = [p for p in parameters(w, source, op, method) if not p.startswith("out:")]
        result = "Tensor"
    elif name.startswith("__r") and _names(function) == ["self", "other"]:
        taken, result = ["self", f"other: {w.number()}"], "Tensor"
    else:
        taken = list(parameters(w, function, op, method))
        result = returned(w, name, function, op)
    if name.startswith("__"):  # an operator passes no keywords
        taken = list(itertools.takewhile(lambda p: p != "*" and not p.startswith("out:"), taken))
    if taken and taken[-1] == "*":  # what it stood for was left out
        taken.pop()
    odd = name in ("__eq__", "__ne__", "__reduce_ex__")  # not what object's accept or return
    ignore = "  # type: ignore[override]" if odd else ""
    doc = (doc or inspect.getdoc(function) or "").partition("\n")[0].replace("\\", "\\\\")
    head = f"{indent}def {name}({', '.join(taken)}) -> {result}:"
    if not doc:
        return [f"{head} ...{ignore}"]
    return [f"{head}{ignore}", f'{indent}    """{doc}"""']


def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


# tensor.pyi: the source file, bodies left out, and the installed methods


class _Rename(ast.NodeTransformer):
    def __init__(self, w: Writer, scope: dict[str, Any]) -> None:
        self.w, self.scope = w, scope

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = self.scope.get(node.id, getattr(builtins, node.id, None))
        home = getattr(found, "__module__", "typing") or "typing"
        if isinstance(found, type) or found is Any:
            node.id = self.w.name("typing" if found is Any else home, node.id)
        return node


def tensor_stub() -> str:
    """Build the text of ``tensor.pyi``."""
    tree = ast.parse(Path(tensor.__file__).read_text(encoding="utf-8"))
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    written = {n.name for n in ast.walk(classes["Tensor"]) if isinstance(n, ast.FunctionDef)}
    written |= {t.id for n in classes["Tensor"].body for t in _targets(n)}
    installed = sorted(
        n
        for n, v in Tensor.__dict__.items()
        if n not in written
        and (callable(v) or isinstance(v, property | staticmethod))
        and n not in ("__doc__", "__module__", "__slots__", "__class__")
    )
    w = Writer("", ".tensor", {*written, *installed})
    rename = _Rename(w, {**vars(typing), **vars(tensor)})
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            w.lines += ["", f"class {node.name}:", *_class_body(node, rename)]
            if node.name == "Tensor":
                w.lines.append("    # Installed by the ops")
                for name in installed:
                    w.lines += _installed(w, name, Tensor.__dict__[name])
        elif isinstance(node, ast.FunctionDef):
            w.lines += ["", *_source_function(node, rename, "")]
    return w.finish(HEADER)


def _targets(node: ast.stmt) -> list[ast.Name]:
    if isinstance(node, ast.Assign):
        return [t for t in node.targets if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target]
    return []


def _installed(w: Writer, name: str, value: Any) -> list[str]:
    if isinstance(value, property):
        if value.fget is None:
            return [f"    {name}: {w.name('typing', 'Any')}"]
        doc = inspect.getdoc(value) or ""
        getter = stub(w, name, value.fget, method=True, indent="    ", doc=doc)
        lines = ["    @property", *getter]
        if value.fset is not None:
            kind = w.name("typing", "Any")
            lines += [f"    @{name}.setter", f"    def {name}(self, value: {kind}) -> None: ..."]
        return lines
    if isinstance(value, staticmethod) or not isinstance(value, Callable):  # type: ignore[arg-type]
        return [f"    {name}: {w.name('typing', 'Any')}"]
    return stub(w, name, value, method=True, indent="    ")


def _class_body(node: ast.ClassDef, rename: _Rename) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            yield from _source_function(item, rename, "    ")
            if item.name == "__init__":
                yield from _attributes(item, rename)
        elif isinstance(item, ast.AnnAssign):
            yield f"    {ast.unparse(item.target)}: {_annotation(item.annotation, rename)}"
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Name):
            yield f"    {ast.unparse(item)}"
        elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant):
            kind = rename.w.type(type(item.value.value))
            yield f"    {ast.unparse(item.targets[0])}: {kind}"


def _attributes(init: ast.FunctionDef, rename: _Rename) -> Iterator[str]:
    # self.x = x: the attribute has the parameter's type.
    kinds = {a.arg: a.annotation for a in init.args.args}
    for node in ast.walk(init):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            known = kinds.get(node.value.id) if isinstance(node.value, ast.Name) else None
            kind = _annotation(known, rename) if known else rename.w.name("typing", "Any")
            yield f"    {node.targets[0].attr}: {kind}"


def _annotation(node: ast.expr, rename: _Rename) -> str:
    return ast.unparse(rename.visit(ast.parse(ast.unparse(node), mode="eval")))


def _source_function(node: ast.FunctionDef, rename: _Rename, indent: str) -> Iterator[str]:
    a = node.args
    for decorator in node.decorator_list:
        yield f"{indent}@{ast.unparse(decorator)}"
    for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg):
        if arg is not None and arg.annotation is not None:
            arg.annotation = ast.parse(_annotation(arg.annotation, rename), mode="eval").body
    a.defaults = [ast.Constant(...) for _ in a.defaults]
    a.kw_defaults = [d and ast.Constant(...) for d in a.kw_defaults]
    result = "" if node.returns is None else f" -> {_annotation(node.returns, rename)}"
    doc = (ast.get_docstring(node) or "").partition("\n")[0]
    head = f"{indent}def {node.name}({ast.unparse(a)}){result}:"
    yield from [head, f'{indent}    """{doc}"""'] if doc else [f"{head} ..."]


# ops/__init__.pyi: every public function


def ops_stub() -> str:
    """Build the text of ``ops/__init__.pyi``."""
    w = Writer(".", ".ops", FUNCTIONS)
    w.type(Tensor)
    w.lines += ["", "__all__ = [", *(f'    "{n}",' for n in sorted(FUNCTIONS)), "]", ""]
    for name in sorted(FUNCTIONS):
        function = FUNCTIONS[name]
        if inspect.isclass(function):
            w.lines.append(f"{name}: {w.name('typing', 'Any')}")
        else:
            w.lines += stub(w, name, function, method=False)
    return w.finish(HEADER)


def generate() -> dict[str, str]:
    """Build the text of each stub, by file name."""
    assert OPS, "the ops declare themselves when they are imported"
    return {"tensor.pyi": tensor_stub(), "ops/__init__.pyi": ops_stub()}


def stale() -> list[str]:
    """List the stubs on disk that are out of date."""
    return [
        name
        for name, text in generate().items()
        if not FILES[name].is_file() or FILES[name].read_text(encoding="utf-8") != text
    ]


def main(argv: Sequence[str]) -> int:
    """Write the stubs, or with ``--check`` only list those that are out of date."""
    if "--check" in argv:
        found = stale()
        for name in found:
            print(f"framework/{name} is out of date: run python -m lowtide.framework.codegen.stubs")
        return 1 if found else 0
    for name, text in generate().items():
        FILES[name].write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
