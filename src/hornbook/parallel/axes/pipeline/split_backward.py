"""Backward in two parts: the gradients of a stage's inputs, which another rank waits for, and later those of weights.

Autograd computes what is asked for. Asked for inputs alone, it runs those nodes of the graph that lead to an input; at
each of them the gradient that comes in is caught. The second part runs the same nodes again, each by itself and asked
for its weights alone: a matrix product then costs one product in either part. A node of our own that computes all its
gradients at once does so twice. Weights that are used in several places get their gradient in the first part.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from hornbook.kernels.torch_versions import gradients_of_edges

Edge = tuple[Node, int]
"""A node and which of its inputs in backward."""


class WeightGradients:
    """The second part, which waits: it adds to `grad` of the weights."""

    def __init__(self) -> None:
        self.branches: dict[Node, list[Edge]] = {}
        """Nodes on the way to an input -> their edges that lead to weights alone."""
        self.caught: dict[Node, tuple[Tensor | None, ...]] = {}
        """Gradients that came to these nodes."""
        self.ready: list[tuple[Edge, Tensor]] = []
        """Gradients that are known already."""
        self.graph: list[GradientEdge] = []
        """The edges of the outputs, which keep the graph: before 2.13 a node that is written in Python does not."""

    def compute(self) -> None:
        """Compute them; the graph is gone afterwards."""
        roots = self.ready
        for node, edges in self.branches.items():
            given = [
                (GradientEdge(node, at), each) for at, each in enumerate(self.caught.pop(node)) if each is not None
            ]
            asked = [GradientEdge(*edge) for edge in edges]
            found = gradients_of_edges([each for each, _ in given], asked, [each for _, each in given])
            roots += [(edge, each) for edge, each in zip(edges, found, strict=True) if each is not None]
        self.branches, self.ready = {}, []
        if roots:
            gradients_of_edges([GradientEdge(*edge) for edge, _ in roots], (), [each for _, each in roots])
        self.graph = []


def gradients_of_inputs(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[list[Tensor], WeightGradients]:
    """Gradients of `inputs`, which are leaves, and what is left to compute."""
    rest = WeightGradients()
    wanted = [get_gradient_edge(each) for each in inputs]
    rest.graph = [get_gradient_edge(each) for each in outputs]
    graph = _Graph([each.node for each in rest.graph], {each.node for each in wanted})
    rest.branches = graph.branches
    hooks = [node.register_prehook(partial(_catch, rest.caught, node)) for node in rest.branches]
    now = [GradientEdge(leaf, 0) for leaf in graph.now]
    found = torch.autograd.grad(outputs, [*wanted, *now], gradients, retain_graph=True, allow_unused=True)
    for hook in hooks:
        hook.remove()
    for edge, gradient in zip(now, found[len(inputs) :], strict=True):
        if gradient is not None:
            rest.ready.append(((edge.node, 0), gradient))
    pairs = zip(inputs, found, strict=False)
    return [torch.zeros_like(each) if gradient is None else gradient for each, gradient in pairs], rest


def _catch(caught: dict[Node, tuple[Tensor | None, ...]], node: Node, gradients: tuple[Tensor | None, ...]) -> None:
    caught[node] = gradients


class _Graph:
    """Which nodes of a graph lead to inputs, and which of their edges lead to weights alone."""

    def __init__(self, roots: Sequence[Node], inputs: set[Node]) -> None:
        through, leaves = set[Node](), dict[Node, frozenset[Node]]()
        for node in _children_first(roots):
            children = [child for child, _ in _edges(node)]
            if node in inputs or any(child in through for child in children):
                through.add(node)
            else:
                own = [node] if hasattr(node, "variable") else []
                leaves[node] = frozenset(own).union(*(leaves[child] for child in children))
        aside = [(node, edge) for node in through for edge in _edges(node) if edge[0] in leaves]
        ways = Counter(leaf for _, (child, _) in aside for leaf in leaves[child])
        at_once = {leaf for leaf, count in ways.items() if count > 1}
        at_once = at_once.union(*(leaves[root] for root in roots if root in leaves))
        shared = [leaves[child] for _, (child, _) in aside if leaves[child] & at_once]
        self.now = at_once.union(*shared)
        """Weights that more than one way leads to, and what is used with them."""
        self.branches: dict[Node, list[Edge]] = {}
        """Nodes that lead to an input -> their edges that lead to weights alone, each the only way there."""
        for node, edge in aside:
            if leaves[edge[0]] - self.now:
                self.branches.setdefault(node, []).append(edge)


def _edges(node: Node) -> list[Edge]:
    return [(child, at) for child, at in node.next_functions if child is not None]


def _children_first(roots: Sequence[Node]) -> Iterator[Node]:
    """Every node that backward may reach, each behind those it leads to."""
    seen, stack = set[Node](), [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in _edges(node) if child not in seen]
