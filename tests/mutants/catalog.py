"""Mistakes that somebody could make, and the tests that are asked first about each.

A mutant replaces one text, which stands exactly once in its file. ``run.py`` says which tier of
tests kills it.
"""

from __future__ import annotations

from dataclasses import dataclass

AUTOGRAD = ("tests/autograd",)
OPS = ("tests/ops/test_generated.py", "tests/ops/test_dispatch.py")
MEMORY = ("tests/memory",)
REGIONS = ("tests/checkpointing/test_regions.py", "tests/checkpointing/test_passes.py")
DATA = ("tests/data",)
FILES = ("tests/serialization",)
OVERWRITING = ("tests/autograd/test_overwriting.py",)
HALVES = (
    "tests/ops/test_half_loops.py", "tests/ops/test_row_blocks.py",
    "tests/ops/convolution/test_half_blocks.py",
)  # fmt: skip
UPDATES = ("tests/kernels/test_update.py",)
OPTIM = ("tests/optim",)


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        name: What is wrong with it.
        file: Where.
        before: The text that is replaced.
        after: What by.
        tests: Files or folders that are run first; the whole tier follows if they pass.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


DISPATCH = "framework/ops/dispatch.py"
PLAN = "framework/ops/plan.py"
PASS = "framework/autograd/backward_pass.py"
GROWN = "framework/autograd/accumulate.py"
VIEWS = "framework/autograd/view_history.py"
SAVED = "framework/autograd/saved.py"
POOL = "framework/memory/pool.py"
LEDGER = "framework/memory/ledger.py"
REPLAY = "framework/autograd/remat/replay.py"
EVICTOR = "framework/autograd/remat/evictor.py"
COSTS = "framework/autograd/remat/replay_costs.py"
PAGES = ("tests/memory/test_pages.py",)
BUDGET = ("tests/budget/test_evictor.py", "tests/budget/test_contexts.py")
KEEP = ("tests/budget/test_keep.py",)
STASHES = ("tests/budget/test_stashes.py",)
RECORDED = ("tests/budget/test_recorded.py",)
PROFILES = (
    "tests/profiling/test_profiler_lifetime.py",
    "tests/profiling/record",
)
AMP = ("tests/test_amp.py",)
CPU = "framework/kernels/cpu/"

MUTANTS = (
    # The dispatcher
    Mutant(
        "the second operand's need of a gradient is forgotten", DISPATCH,
        "                mask += 2", "                mask += 0", AUTOGRAD,
    ),
    Mutant(
        "kernels get the layouts that they refuse", PLAN,
        "and not plan.layouts.get(i, plan.layout)(array)",
        "and plan.layouts.get(i, plan.layout)(array)", ("tests/ops",),
    ),
    Mutant(
        "plans are kept without bound", DISPATCH,
        "len(op.plans) >= MAX_PLANS", "len(op.plans) >= 99 * MAX_PLANS", OPS,
    ),
    Mutant(
        "integer results of an op require a gradient", DISPATCH,
        "if out._spec.dtype.category >= FLOAT:", "if True:", (*OPS, *AUTOGRAD),
    ),
    Mutant(
        "a view made under no_grad is taken for one with a history", DISPATCH,
        "tracked = state.grad and viewed.tracked", "tracked = True", AUTOGRAD,
    ),
    Mutant(
        "a 0-d tensor of another device stays where it is", DISPATCH,
        "if len(where) == 1 and any(", "if len(where) == 9 and any(", (*OPS, "tests/devices"),
    ),
    # The engine
    Mutant(
        "the oldest node runs first", PASS,
        "                        heappush(heap, (-target.seq, target))",
        "                        heappush(heap, (target.seq, target))", AUTOGRAD,
    ),
    Mutant(
        "a leaf accumulates before its gradient is whole", PASS,
        "                if left == 0:\n                    self._leaf",
        "                if left <= 1:\n                    self._leaf",
        AUTOGRAD,
    ),
    Mutant(
        "gradients come in the wrong dtype", PASS,
        "if g is not None and g._spec is not specs[k]:", "if False:", AUTOGRAD,
    ),
    Mutant(
        "with inputs= every node runs", PASS,
        "            if any(wanted):", "            if True:", AUTOGRAD,
    ),
    Mutant(
        "a replaced gradient of a node's hook is ignored", PASS,
        "            grads[:] = _checked(hook, replaced, grads)",
        "            _checked(hook, replaced, grads)", AUTOGRAD,
    ),
    Mutant(
        "the first gradient is shared with its maker", GROWN,
        "elif not share and _is_ours(g, _AT_LEAF):", "elif not share:", AUTOGRAD,
    ),
    Mutant(
        "a second gradient replaces the first", GROWN,
        "            _add(old, g)\n            old._storage", "            old._storage", AUTOGRAD,
    ),
    # Views
    Mutant(
        "the written part of a base keeps its old gradient", VIEWS,
        "replay(outside, self.chain).zero_()", "replay(outside, self.chain)", AUTOGRAD,
    ),
    Mutant(
        "a long chain forgets where its base begins", VIEWS,
        "start = view.storage_offset() - base.storage_offset()",
        "start = view.storage_offset()", AUTOGRAD,
    ),
    Mutant(
        "a leaf may be written with grad mode on", VIEWS,
        "    if leaf or (owner._node", "    if (owner._node", AUTOGRAD,
    ),
    Mutant(
        "a write through a view made under no_grad is not refused", VIEWS,
        "and not viewed.tracked and (recorded", "and False and (recorded", AUTOGRAD,
    ),
    Mutant(
        "a saved value may be overwritten", SAVED,
        "if self.storage.version != self.version and not self.storage.restore(self.version):",
        "if False:", AUTOGRAD,
    ),
    # Pool and ledger
    Mutant(
        "the limit is one byte short", LEDGER,
        "if self.live + nbytes > self.limit:", "if self.live + nbytes >= self.limit:", MEMORY,
    ),
    Mutant(
        "the roles at the peak go on changing", LEDGER,
        "            self.peak_roles = roles[:]", "            self.peak_roles = roles", MEMORY,
    ),
    Mutant(
        "a saved value's pin outlives it", SAVED,
        "                ledger.roles[SAVED] -= n\n", "", MEMORY,
    ),
    Mutant(
        "the end of a saved value is not published", SAVED,
        "                    publish(ledger, \"role\", storage, SAVED)", "                    pass",
        PROFILES,
    ),
    Mutant(
        "the saving of a value is not published", SAVED,
        "                    publish(ledger, \"role\", storage, TEMPORARY)",
        "                    pass", PROFILES,
    ),
    Mutant(
        "an op's node is made without a site", "framework/autograd/node.py",
        "        if recording.on:\n            note_node(self)\n\n    @property",
        "\n    @property", PROFILES,
    ),
    Mutant(
        "a module's scope is never left", "modules/hooks.py",
        "        if entry is not None:  # `leave`", "        if False:  # `leave`", PROFILES,
    ),
    Mutant(
        "an op is not converted in an autocast region", DISPATCH,
        "    if state.autocast is not None and op.autocast is not None:", "    if False:", AMP,
    ),
    Mutant(
        "a composition is not converted in an autocast region", "framework/ops/autocast_policy.py",
        "_function if _local.state.autocast is None else _casting", "_function", AMP,
    ),
    Mutant(
        "the end of a backward pass is not told", "framework/autograd/engine.py",
        "            watcher.end_pass(inputs is None)", "            pass",
        ("tests/profiling/leaks",),
    ),
    Mutant(
        "the best fit is a block too large", POOL,
        "bisect_left(by_size, (size, -1))", "bisect_left(by_size, (size + 64, -1))", MEMORY,
    ),
    Mutant(
        "merged extents forget the one behind", POOL,
        "            end += after\n", "", MEMORY,
    ),
    Mutant(
        "the top never comes down", POOL,
        "            self.top = last\n", "", MEMORY,
    ),
    Mutant(
        "a tail that was trimmed is not given back", POOL,
        "                self._give_above(self.top)\n", "", MEMORY,
    ),
    # Recomputation
    Mutant(
        "regions that nest have the wrong one in common", REPLAY,
        "        if a.depth >= b.depth:", "        if a.depth <= b.depth:",
        ("tests/checkpointing/test_nesting.py",),
    ),
    Mutant(
        "a call keeps its demand for an outer region's value", REPLAY,
        "        crossed[value] -= 1\n", "", ("tests/checkpointing",),
    ),
    # Pages
    Mutant(
        "pages are booked as given back, and are not", POOL,
        "                self.release(begin, end - begin)\n", "                pass\n", PAGES,
    ),
    Mutant(
        "a block cut from a free extent is not booked", POOL,
        "            pages.take(offset, offset + size)\n", "            pass\n", PAGES,
    ),
    Mutant(
        "a block lies where a finalizer's does", POOL,
        "                        if self.top != offset or pages.high < end:\n",
        "                        if False:\n", PAGES,
    ),
    # Budgets of bytes
    Mutant(
        "nothing is dropped to make room", EVICTOR,
        "            value = self._choose(ledger, smallest)\n",
        "            value = None\n", BUDGET,
    ),
    Mutant(
        "what others drop is dropped too", EVICTOR,
        "if self.busy or get_ident() != self.thread:", "if self.busy:", BUDGET,
    ),
    Mutant(
        "what something gone is made from is let go", COSTS,
        "            if reader.consumers:\n                return True\n", "", BUDGET,
    ),
    Mutant(
        "a cost does not follow what is gone above it", COSTS,
        "                        its.counted = True\n", "", BUDGET,
    ),
    Mutant(
        "what a plan keeps is dropped like the rest", EVICTOR,
        "            scores *= self._factor[:n]\n", "            pass\n", KEEP,
    ),
    Mutant(
        "the second step of a plan counts on from the first", EVICTOR,
        "            region.began = region.clock\n\n    def settle",
        "            pass\n\n    def settle", KEEP,
    ),
    Mutant(
        "the bound holds on to what a call reads that runs again",
        "profiling/estimate/replay_bound.py",
        "[(live[read], 1), (made, 1), (runs, -1)]", "[(live[read], 1), (runs, -1)]", KEEP,
    ),
    Mutant(
        "the bound lets nothing else live", "profiling/estimate/replay_bound.py",
        "    room = budget - instant.need\n", "    room = budget - 2 * instant.need\n", KEEP,
    ),
    Mutant(
        "what a stashed value was made from is kept", "framework/autograd/remat/stashing.py",
        "        _forget_reader(value)\n", "", STASHES,
    ),
    Mutant(
        "what is stashed is written each time", EVICTOR,
        "        if value.producer.__class__ is StashCall:\n            return\n", "", STASHES,
    ),
    Mutant(
        "lossy packing passes for a stash", "framework/checkpointing/budget.py",
        "        if isinstance(way, pack) and not way.lossless:\n", "        if False:\n", STASHES,
    ),
    Mutant(
        "a drop is not recorded", EVICTOR,
        "            publish_eviction(value.ledger, value.held.storage)\n",
        "            pass\n", RECORDED,
    ),
    Mutant(
        "replays are recorded for the wrong owner", "profiling/record/event_log.py",
        "owner = 0 if block is None else block[2]", "owner = 0", RECORDED,
    ),
    Mutant(
        "an advised budget is not entered", "profiling/estimate/changes.py",
        "memory_budget(self.limit, self.device, rule=self.rule).__enter__()",
        "memory_budget(self.limit, self.device)",
        ("tests/profiling/estimate/test_advise_budget.py",),
    ),
    Mutant(
        "advice never plans a budget", "profiling/estimate/budget_advice.py",
        "    if planned is None or not planned.fits:\n        return usual\n",
        "    return usual\n", ("tests/profiling/estimate/test_advise_budget.py",),
    ),
    Mutant(
        "the floor counts values that nobody wants", "profiling/estimate/imagined_step.py",
        "        super().open(recorder)\n        self.released = None\n",
        "        super().open(recorder)\n", ("tests/budget/test_fit.py",),
    ),
    Mutant(
        "a plan leaves the optimizer out of backward", "profiling/estimate/in_backward.py",
        "        handles = fuse(self.in_backward)\n", "        handles = fuse([])\n",
        ("tests/budget/test_in_backward.py",),
    ),
    Mutant(
        "the optimizer stays in backward behind a plan", "profiling/estimate/in_backward.py",
        "            undo(self._handles.pop())\n", "            self._handles.pop()\n",
        ("tests/budget/test_in_backward.py",),
    ),
    Mutant(
        "backward may update twice before step()", "optim/in_backward.py",
        "updated = optimizer._updated if self.once else None", "updated = None",
        ("tests/optim/test_in_backward.py",),
    ),
    Mutant(
        "a step without step() may update in backward", "profiling/estimate/imagined_step.py",
        "            check_stepped(fused)\n", "", ("tests/budget/test_in_backward.py",),
    ),
    Mutant(
        "weights of before are not copied for replays", "framework/checkpointing/budget.py",
        "            leave_copies(p._storage)\n", "            pass\n",
        ("tests/budget/test_programs.py",),
    ),
    Mutant(
        "copies that nobody waits for live on", "profiling/estimate/fork_sandbox.py",
        "            running.popleft().end()\n", "            running.popleft()\n",
        ("tests/profiling/estimate/test_copies_at_once.py",),
    ),
    Mutant(
        "a backward pass lets go of nothing", EVICTOR,
        "        with defer_interrupts():\n            self._settle()\n", "        return\n",
        BUDGET,
    ),
    Mutant(
        "the inner of two budgets holds", LEDGER,
        "limit = min([self._own_limit, *[budget.limit for budget in budgets]])",
        "limit = budgets[-1].limit if budgets else self._own_limit", BUDGET,
    ),
    Mutant(
        "what no_grad computes is recorded", "framework/checkpointing/budget.py",
        "        if not _graph_may_want_it():\n            return\n", "", BUDGET,
    ),
    Mutant(
        "a replay brings back one value at a time", REPLAY,
        "if (id(c) in read or c in self.crossed)", "if c in self.crossed",
        ("tests/checkpointing",),
    ),
    # Kernels
    Mutant(
        "layer norm forgets eps", CPU + "normalization/layer_norm.py",
        "np.sqrt(total * inverse + eps)", "np.sqrt(total * inverse)",
        ("tests/ops", "tests/modules"),
    ),
    Mutant(
        "an ignored class has a gradient", CPU + "loss/cross_entropy.py",
        "g = _ZERO if t == ignored else grad[i * step]", "g = grad[i * step]",
        ("tests/ops", "tests/modules"),
    ),
    Mutant(
        "the slope of gelu lacks its density", "framework/ops/activation/gelu.py",
        "return (normal_cdf(input, e) + input * (e * DENSITY)) * grad",
        "return normal_cdf(input, e) * grad", ("tests/ops",),
    ),
    Mutant(
        "silu is a sigmoid", "framework/ops/activation/gelu.py",
        "return input / (1 + exp(-input))", "return 1 / (1 + exp(-input))", ("tests/ops",),
    ),
    Mutant(
        "a loop reads the first gradient only", "framework/kernels/formula/loop.py",
        '                *self._walk("        ", self.elements, lines),\n                "",',
        '                "        grad_i = grad[0]",\n'
        '                *self._walk("        ", rest, lines),\n                "",',
        ("tests/ops", "tests/kernels"),
    ),
    Mutant(
        "an update writes its input while the old value is read",
        "framework/kernels/formula/numpy_calls.py",
        "(ends < begins or (ends == begins and not apart))", "True", UPDATES,
    ),
    Mutant(
        "an update's second result that is the first is forgotten",
        "framework/kernels/formula/numpy_calls.py",
        "            if found[value] != element:", "            if False:", UPDATES,
    ),
    Mutant(
        "numbers of a called formula are read as the caller's",
        "framework/kernels/formula/reader.py",
        "return self.given.get(node.id) or ", "return node or ", UPDATES,
    ),
    Mutant(
        "half precision is not written back", "framework/updates.py",
        "    rounded = [k for k in converted if variant.elements[k] in variant.written]",
        "    rounded = []", UPDATES,
    ),
    Mutant(
        "scratch is refused in the middle of a step", "framework/updates.py",
        "    _scratch_tensors(wanted, device)  # what", "    # what", UPDATES,
    ),
    Mutant(
        "an update of the last call is taken for another's numbers",
        "framework/kernels/formula/update.py",
        "        if known != attributes:", "        if known is None:", OPTIM,
    ),
    Mutant(
        "a value that a call waits for is overwritten", "framework/kernels/formula/numpy_calls.py",
        "isinstance(value, Local) and self.left[value.name] <= 1",
        "isinstance(value, Local) and self.left[value.name] <= 2",
        ("tests/kernels", "tests/ops"),
    ),
    Mutant(
        "a buffer is used again while it is read", "framework/kernels/formula/numpy_calls.py",
        "if other == kind and (ends < k or", "if other == kind and (ends <= k + 1 or",
        ("tests/kernels", "tests/ops"),
    ),
    Mutant(
        "a result is written while its input is read", "framework/kernels/formula/numpy_calls.py",
        "if over_input and first[final] < inputs:", "if False:", ("tests/kernels", "tests/ops"),
    ),
    Mutant(
        "cumsum of columns begins with one", CPU + "reduction/scan.py",
        "here[:] = 0", "here[:] = 1", ("tests/ops/reduction",),
    ),
    Mutant(
        "bits of the memory before stay set", "framework/kernels/formula/bits.py",
        "{b}_tile[:] = none", "{b}_tile[:0] = none", ("tests/kernels/test_bits.py",),
    ),
    Mutant(
        "a composition writes what out= cannot hold", "framework/ops/inplace.py",
        "    _check_cast(name, out, result)", "    pass", ("tests/ops/test_out.py",),
    ),
    Mutant(
        "clamp reads a bound that it has written", "framework/ops/elementwise/comparison.py",
        "if min is not None and written:", "if False:", ("tests/ops/test_inplace_dtypes.py",),
    ),
    Mutant(
        "an index without dims is taken as it is", "framework/ops/indexing/gather.py",
        'if input.ndim and getattr(index, "ndim", 1) and not _is_one_value(index, rest):',
        "if True:", ("tests/ops/indexing/test_no_dims.py",),
    ),
    Mutant(
        "a scaled operand keeps its own dtype", "framework/ops/elementwise/arithmetic.py",
        "(other if other.dtype is common else other.to(common)) * alpha", "other * alpha",
        ("tests/ops/elementwise/test_factors.py",),
    ),
    Mutant(
        "a power's slope is masked, its product with the gradient is not",
        "framework/ops/elementwise/powers.py",
        "return _where(flat, 0, g) * conjugate(_where(flat, 0, slope))",
        "return _where(flat, 0, g * conjugate(slope))", ("tests/ops/test_flat_points.py",),
    ),
    Mutant(
        "a shared gradient takes the sum of each sample's", "framework/autograd/accumulate.py",
        "elif _has_room(old, g) and _is_ours(old, _PENDING):", "elif _is_ours(old, _PENDING):",
        ("tests/vmap/test_transforms_together.py",),
    ),
    Mutant(
        "vectors are multiplied in low precision on the CPU", "framework/ops/linalg/products.py",
        '@function(method=True, autocast={"cpu": "keep", "cuda": "promote"})\ndef dot(',
        "@function(method=True)\ndef dot(", ("tests/ops/test_autocast_lists.py",),
    ),
    # Data
    Mutant(
        "an iterable's last batch comes although it is to be dropped", "framework/data/fetch.py",
        "if not batch or drop_last:", "if not batch:", DATA,
    ),
    Mutant(
        "a share of a shuffled order is the same in each epoch", "framework/data/sampler.py",
        "_EpochState([self.seed + self.epoch, 0])", "_EpochState([self.seed, 0])", DATA,
    ),
    Mutant(
        "all workers have one seed", "framework/data/workers.py",
        "        self.seed = base_seed + number", "        self.seed = base_seed", DATA,
    ),
    Mutant(
        "workers draw NumPy's numbers alike in each batch", "framework/data/workers.py",
        "SeedSequence([self.seed, batch + 1])", "SeedSequence([self.seed, 1])", DATA,
    ),
    # Files and optimizers
    Mutant(
        "checksums are read and not compared", "framework/serialization/checksums.py",
        "if expected is not None and found != expected", "if False and found != expected", FILES,
    ),
    Mutant(
        "a saved file keeps no mode", "framework/serialization/atomic_files.py",
        "                os.fchmod(out.fileno(), mode)", "                pass",
        ("tests/faults/test_writers.py",),
    ),
    Mutant(
        "decoupled weight decay is added to the gradient", "optim/adam.py",
        "            decoupled_weight_decay=True,\n",
        "            decoupled_weight_decay=False,\n", OPTIM,
    ),
    # Halves
    Mutant(
        "a block of rows is not rounded into its place", "framework/kernels/common/row_blocks.py",
        "            if home is not None:\n                copy(part, made)",
        "            if home is None:\n                copy(part, made)", HALVES,
    ),
    Mutant(
        "sums of a weight's gradient begin anew in each block",
        "framework/ops/convolution/half_blocks.py",
        "        xp.add(total, here, out=total)", "        xp.copyto(total, here)", HALVES,
    ),
    Mutant(
        "a loop of halves reads words as numbers", "framework/kernels/formula/loop.py",
        '"np.float32", "widened({}[{}])", "converted(out, {})"',
        '"np.float32", "np.float32({}[{}])", "converted(out, {})"', HALVES,
    ),
    Mutant(
        "a masked attention has the first block's mask in all blocks",
        "framework/ops/attention/sdpa.py",
        "        arrays = o, sums, scores, kept, q, k, v, tiling.mask_words(*(mask or [None]))",
        "        arrays = o, sums, scores, kept, q, k, v, tiling.mask_words(attn_mask)", HALVES,
    ),
    # Gradients over values
    Mutant(
        "a value that another array shows is overwritten", "framework/autograd/overwriting.py",
        "        if sys.getrefcount(x._storage) > storage + more:\n", "        if False:\n",
        OVERWRITING,
    ),
    Mutant(
        "a view is overwritten whose base has another one", "framework/autograd/overwriting.py",
        "        if _base_references(x) <= _MOST_OF_BASE + more:\n", "        if True:\n",
        OVERWRITING,
    ),
    Mutant(
        "a rule overwrites what a later rule reads", "framework/ops/rules.py",
        "            if fits and place not in read and spec", "            if fits and spec",
        OVERWRITING,
    ),
    Mutant(
        "a replay overwrites what another call reads", "framework/autograd/remat/replay.py",
        "            self.uses[value] == _reads(producer, value)\n",
        "            self.uses[value] >= _reads(producer, value)\n",
        ("tests/checkpointing",),
    ),
    Mutant(
        "a retained graph of a compiled model is overwritten", "framework/capture/split_replay.py",
        "        if old in self._retained:", "        if False:",
        ("tests/capture/test_later_backward.py", "tests/capture/test_taken_over.py"),
    ),
    Mutant(
        "a gradient's loop writes before it reads",
        "framework/kernels/cpu/normalization/layer_norm.py",
        "        _grad_of_columns(dw, db, g, x, mean, rstd, start, stop, 0, n)\n"
        "        _grad_of_rows(dx, g, x, weight, mean, rstd, start, stop)\n",
        "        _grad_of_rows(dx, g, x, weight, mean, rstd, start, stop)\n"
        "        _grad_of_columns(dw, db, g, x, mean, rstd, start, stop, 0, n)\n", OVERWRITING,
    ),
)  # fmt: skip
