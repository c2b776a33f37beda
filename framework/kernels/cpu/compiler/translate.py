"""Translation of a kernel to a library: by Numba, with functions by which others call it.

What those functions are is written in ``entry_code.py``; ``link.py`` makes the library.

A kernel and each function that it calls are modules of LLVM, which are linked into one. Numba would
also write, for each function, a wrapper for calls from Python and one for calls from C, optimize
all three and load them into the process. These are not needed here: :class:`Callee` leaves them
out, which saves a quarter of the time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba.core import compiler as _compiler
from numba.core import runtime as _runtime
from numba.core import types as _types
from numba.core.codegen import JITCodeLibrary as _JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher as _CPUDispatcher
from numba.core.sigutils import normalize_signature as _normalize_signature

from .entry_code import SYMBOLS, write_all
from .entry_code import CannotTranslate as CannotTranslate
from .fingerprint import of_source
from .library import NEEDED
from .link import LinkError as LinkError
from .link import link
from .numba_dispatcher import with_numba_objects
from .runtime import FUNCTIONS

SOURCE = of_source(__file__)  # as it is imported

compiler: Any = _compiler
types: Any = _types
runtime: Any = _runtime
llvm: Any = binding
_base: Any = _CPUDispatcher
_library: Any = _JITCodeLibrary
_arguments_and_result: Any = _normalize_signature


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


class Callee(_base):  # type: ignore[misc]
    """A kernel or a function as the compiler of others knows it: compiled to be linked into them.

    Args:
        kernel: What Python knows it as.
    """

    def __init__(self, kernel: Any) -> None:
        options = {"nopython": True, "boundscheck": None, **kernel.options}
        super().__init__(with_numba_objects(kernel.py_func), {}, options)
        self.overlaps = kernel.overlaps

    def compile(self, sig: Any) -> Any:
        """Return the name of its code for a signature; Numba's type inference calls this."""
        with global_compiler_lock, self._compiling_counter:
            arguments, result = _arguments_and_result(sig)
            found = self.overloads.get(tuple(arguments))
            return (found or self._compile_for(tuple(arguments), result)).entry_point

    def _compile_for(self, arguments: tuple[Any, ...], result: Any) -> Any:
        context = self.targetdescr.target_context
        library = _Linked(context.codegen(), self.py_func.__name__)
        made = compile_only(self, arguments, result, library)
        made = made._replace(entry_point=object())  # a name: nothing is loaded that has an address
        context.insert_user_function(made.entry_point, made.fndesc, [library])
        self.overloads[arguments] = made
        return made


class _Linked(_library):  # type: ignore[misc]
    # The code of a function, for linking: optimized with the kernel that it becomes a part of, and
    # not loaded.

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


def compile_only(dispatcher: Any, kinds: tuple[Any, ...], result: Any, library: Any) -> Any:
    """Return what Numba's compiler makes of a function: without wrappers, and not loaded."""
    target = dispatcher.targetdescr
    flags = compiler.Flags()
    target.options.parse_as_flags(flags, dispatcher.targetoptions)
    flags = dispatcher._compiler._customize_flags(flags)
    flags.noalias = not dispatcher.overlaps
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
    function, of = dispatcher.py_func, (target.typing_context, target.target_context)
    return compiler.compile_extra(*of, function, kinds, result, flags, {}, library=library)


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
        library = context.codegen().create_library(dispatcher.py_func.__name__)
        made = compile_only(dispatcher, tuple(numba_type(w) for w in words), None, library)
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
