"""The actor-critic network: two small multilayer perceptrons in NumPy, with their gradients written out, and Adam."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Perceptron:
    """Layers of `tanh(x @ weights + bias)`, the last one without tanh."""

    def __init__(self, sizes: tuple[int, ...], last_gain: float, random: np.random.Generator) -> None:
        self.parameters: list[Array] = []
        for index, (inputs, outputs) in enumerate(pairwise(sizes)):
            gain = last_gain if index == len(sizes) - 2 else 1.0
            weights = random.normal(0.0, gain / np.sqrt(inputs), (inputs, outputs))
            self.parameters += [weights.astype(np.float32), np.zeros(outputs, dtype=np.float32)]

    def forward(self, inputs: Array) -> list[Array]:
        """Activations of all layers, the input first and the output last; each (batch, size of the layer)."""
        activations = [inputs]
        for index in range(0, len(self.parameters), 2):
            output = activations[-1] @ self.parameters[index]
            output += self.parameters[index + 1]
            if index < len(self.parameters) - 2:
                np.tanh(output, out=output)
            activations.append(output)
        return activations

    def gradients(self, activations: list[Array], output_gradient: Array) -> list[Array]:
        """Gradient for each of `parameters`, given that of the loss for the output, (batch, outputs)."""
        gradients: list[Array] = []
        gradient = output_gradient
        for index in range(len(self.parameters) - 2, -1, -2):
            inputs = activations[index // 2]
            gradients[:0] = [inputs.T @ gradient, gradient.sum(axis=0)]
            if index:
                gradient = (gradient @ self.parameters[index].T) * (1.0 - inputs * inputs)
        return gradients


class Adam:
    """Adam (Kingma and Ba, 2015) over a list of parameters, changed in place; gradients are cut to `longest`."""

    def __init__(self, parameters: list[Array], rate: float, longest: float = 0.5) -> None:
        self._parameters = parameters
        self._rate = rate
        self._longest = longest
        self._means = [np.zeros_like(each) for each in parameters]
        self._squares = [np.zeros_like(each) for each in parameters]
        self._steps = 0

    def step(self, gradients: list[Array]) -> None:
        """One step down along `gradients`."""
        length = np.sqrt(sum(float(np.vdot(each, each)) for each in gradients))
        scale = np.float32(min(1.0, self._longest / (length + 1e-6)))
        self._steps += 1
        rate = np.float32(self._rate * np.sqrt(1.0 - 0.999**self._steps) / (1.0 - 0.9**self._steps))
        for parameter, gradient, mean, square in zip(
            self._parameters, gradients, self._means, self._squares, strict=True
        ):
            gradient *= scale
            mean += np.float32(0.1) * (gradient - mean)
            square += np.float32(0.001) * (gradient * gradient - square)
            parameter -= rate * mean / (np.sqrt(square) + np.float32(1e-8))
