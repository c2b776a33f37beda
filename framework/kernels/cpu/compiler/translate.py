"""Translation of a kernel to a library: by Numba, with functions by which others call it.

What those functions are is written in ``entry_code.py``; ``link.py`` makes the library.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba.core import compiler as _compiler
from numba.core import runtime as _runtime
from numba.core import types as _types
from numba.core.compiler_lock import global_compiler_lock

from .entry_code import SYMBOLS, write_all
from .entry_code import CannotTranslate as CannotTranslate
from .fingerprint import of_source
from .library import NEEDED
from .link import LinkError as LinkError
from .link import link
from .runtime import FUNCTIONS

SOURCE = of_source(__file__)  # as it is imported

compiler: Any = _compiler
types: Any = _types
runtime: Any = _runtime
llvm: Any = binding


def numba_type(word: str) -> Any:
    """Return Numba's type for a word of a signature."""
    if word == "-":
        return types.none
    if word == "b1":
        return types.boolean
    if "x" in word:
        return types.UniTuple(types.int64, int(word.partition("x")[2]))
    name, _, rest = word.partition(":")
    element = types.boolean if name[0] == "b" else _element(name.rstrip("s"))
    if not rest:
        return element
    layout = rest.lstrip("0123456789")
    ndim = int(rest[: -len(layout)])
    return types.Array(element, ndim, layout[0], readonly="r" in layout, aligned="u" not in layout)


def _element(name: str) -> Any:
    kind = {"i": "int", "u": "uint", "f": "float", "c": "complex"}[name[0]]
    return getattr(types, f"{kind}{8 * int(name[1:])}")


def translate(dispatcher: Any, words: list[str], declared: bool) -> bytes:
    """Return the object of a kernel with its entry.

    Args:
        dispatcher: Numba's, of the kernel.
        words: The types of its arguments.
        declared: Whether all arguments that fit are taken, instead of those of these types alone.

    Raises:
        CannotTranslate: An entry does not know what the kernel takes or returns.
    """
    typing, context = (
        dispatcher.targetdescr.typing_context,
        dispatcher.targetdescr.target_context,
    )
    with global_compiler_lock:
        typing.refresh()
        context.refresh()
        flags = compiler.Flags()
        dispatcher.targetdescr.options.parse_as_flags(flags, dispatcher.targetoptions)
        flags = dispatcher._compiler._customize_flags(flags)
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
        library = context.codegen().create_library(dispatcher.py_func.__name__)
        kinds = tuple(numba_type(w) for w in words)
        made = compiler.compile_extra(
            typing, context, dispatcher.py_func, kinds, None, flags, {}, library=library
        )
        module = library.create_ir_module("entry")
        write_all(made, module, words, declared)
        library.add_ir_module(module)
        return _object(library, context)


def _object(library: Any, context: Any) -> bytes:
    # All that it calls linked in, optimized, and written for any address.
    runtime.rtsys.initialize(context)
    whole = library._final_module
    done = set()
    for part in [*library._linking_libraries, runtime.rtsys.library]:
        if part not in done:
            done.add(part)
            whole.link_in(part._get_module_for_linking(), preserve=True)
    missing = {f.name for f in whole.functions if f.is_declaration}
    for text in {FUNCTIONS[name] for name in missing & set(FUNCTIONS)}:
        more = llvm.parse_assembly(text)
        more.triple, more.data_layout = whole.triple, whole.data_layout
        whole.link_in(more)
    for thing in [*whole.functions, *whole.global_variables]:
        if not thing.is_declaration and thing.name not in SYMBOLS:
            thing.linkage = "internal"
    library._optimize_final_module()
    whole.verify()
    codegen = library._codegen
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(
        cpu=codegen._get_host_cpu_name(),
        features=codegen._tm_features,
        opt=3,
        reloc="pic",
        codemodel="default",
    )
    found: bytes = machine.emit_object(whole)
    return found


def make(kernel: Any, words: str) -> bytes:
    """Return the shared library of a kernel for one signature.

    Raises:
        CannotTranslate: An entry does not know what the kernel takes or returns.
        LinkError: The object needs what the linker does not do.
    """
    found = translate(kernel.numba_object(), words.split(","), kernel.declared is not None)
    return link(found, SYMBOLS, NEEDED)
