"""Monte Carlo tree search, which has leaves evaluated several at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import monotonic_ns

from game import FEATURES, GOES_ON, WON, Game, Position
from networks import BATCH, Network

import rlscope_ebpf.markers as rls

EXPLORATION = 1.5
PLAYOUTS = 4
"""Random games per leaf, whose mean result counts as much as what the network says."""


@dataclass(slots=True)
class Node:
    """A position that has been reached, for who moved to get there."""

    prior: float
    visits: int = 0
    worth: float = 0.0  # sum
    children: dict[int, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Truth:
    """What the search itself knows."""

    evaluations: int = 0
    evaluate_ns: int = 0  # inside of the operation
    around_ns: int = 0  # and with its markers
    simulations: int = 0


class Search:
    """Searches from one position after another."""

    def __init__(self, game: Game, network: Network) -> None:
        self.truth = Truth()
        self._game = game
        self._network = network

    def choose(self, position: Position, rounds: int) -> int:
        """The column to play; each round takes up to BATCH leaves."""
        root = Node(1.0)
        with rls.operation("mcts"):
            for _ in range(rounds):
                self._round(root, position)
        return max(root.children, key=lambda column: root.children[column].visits)

    def _round(self, root: Node, position: Position) -> None:
        leaves: list[tuple[list[Node], Position]] = []
        with rls.operation("select"):
            for _ in range(BATCH):
                path, columns = self._descend(root)
                found, state = self._game.after(position, columns)
                if state != GOES_ON:
                    _back_up(path, 1.0 if state == WON else 0.0)
                    continue
                for node in path:
                    node.visits += 1  # until it is backed up it looks lost, so that the next one goes elsewhere
                    node.worth -= 1
                self._game.features(found, self._network.inputs, len(leaves))
                leaves.append((path, found))
        if not leaves:
            return
        before = monotonic_ns()
        with rls.operation("evaluate"):
            begin = monotonic_ns()
            policies, worths = self._network.evaluate(len(leaves))
            self.truth.evaluate_ns += monotonic_ns() - begin
        self.truth.around_ns += monotonic_ns() - before
        self.truth.evaluations += 1
        self.truth.simulations += len(leaves)
        with rls.operation("expand"):
            for (path, found), policy, worth in zip(leaves, policies, worths, strict=True):
                for node in path:
                    node.visits -= 1
                    node.worth += 1
                leaf = path[-1]
                if not leaf.children:
                    legal = self._game.legal(found)
                    total = sum(policy[column] for column in legal)
                    leaf.children = {column: Node(policy[column] / total) for column in legal}
                worth = (worth + self._game.playouts(found, PLAYOUTS)) / 2
                _back_up(path, -worth)  # of who is to move there; the node is the other one's

    def _descend(self, root: Node) -> tuple[list[Node], list[int]]:
        node, path, columns = root, [root], []
        while node.children:
            scale = EXPLORATION * math.sqrt(node.visits + 1)
            column, node = max(
                node.children.items(),
                key=lambda item: item[1].worth / (item[1].visits or 1) + scale * item[1].prior / (1 + item[1].visits),
            )
            path.append(node)
            columns.append(column)
        return path, columns

    def features_of(self, position: Position) -> bytes:
        """What a network sees of a position."""
        self._game.features(position, self._network.inputs, 0)
        return bytes(self._network.inputs)[: FEATURES * 4]


def _back_up(path: list[Node], worth: float) -> None:
    for node in reversed(path):
        node.visits += 1
        node.worth += worth
        worth = -worth
