"""Modules with tied tensors, drawn: for ``functional_call`` here, and beside PyTorch.

``kit`` is lowtide or torch; equal seeds draw the same modules and calls from either.
"""

from __future__ import annotations


def drawn_module(rng, kit):
    """A tree of modules whose call returns every parameter and buffer by name."""
    nn = kit.nn

    class Holder(nn.Module):
        def forward(self, scale):
            own = [*self.named_parameters(remove_duplicate=False)]
            own += self.named_buffers(remove_duplicate=False)
            return {name: t * scale for name, t in own}

    modules = [Holder()]
    for k in range(rng.randrange(3)):
        child = Holder()
        setattr(rng.choice(modules), f"child{k}", child)
        modules.append(child)
    parameters, buffers = [], []
    for k in range(rng.randrange(1, 7)):
        place = rng.choice(modules)
        kinds = parameters if rng.random() < 0.7 else buffers
        fresh = not kinds or rng.random() < 0.5
        if kinds is parameters:
            parameters.append(
                nn.Parameter(kit.tensor([float(k)])) if fresh else rng.choice(parameters)
            )
            place.register_parameter(f"p{k}", parameters[-1])
        else:
            buffers.append(kit.tensor([float(k)]) if fresh else rng.choice(buffers))
            place.register_buffer(f"b{k}", buffers[-1], persistent=rng.random() < 0.5)
    return modules[0]


def named(module):
    """All names of all tensors of a module."""
    found = dict(module.named_parameters(remove_duplicate=False))
    return {**found, **dict(module.named_buffers(remove_duplicate=False))}


def drawn_call(rng, kit, module):
    """What to pass to ``functional_call``: dictionaries and options."""
    own = named(module)
    pool = [kit.tensor([100.0 + k]) for k in range(rng.choice((1, 1, 2, 5)))]
    by_tensor = {id(t): rng.choice(pool) for t in own.values()}
    share = rng.choice((0.3, 0.7, 1.0, 1.0))
    given = {}
    for name, t in own.items():
        if rng.random() < share:
            given[name] = by_tensor[id(t)] if rng.random() < 0.8 else rng.choice(pool)
    if rng.random() < 0.3:  # one name of each
        seen = {}
        for name, t in own.items():
            seen.setdefault(id(t), name)
        given = {name: by_tensor[id(own[name])] for name in seen.values()}
    names = list(given)
    cut = rng.randrange(len(names) + 1)
    several = {n: given[n] for n in names[:cut]}, {n: given[n] for n in names[cut:]}
    options = {"tie_weights": rng.random() < 0.6, "strict": rng.random() < 0.5}
    return (given if rng.random() < 0.5 else several), given, options
