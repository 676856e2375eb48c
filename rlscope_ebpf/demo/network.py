"""The actor-critic network: a multilayer perceptron in NumPy, with its gradients written out, and Adam.

All parameters lie in one vector, and so do all gradients: an optimizer step is a dozen calls of NumPy, however many
layers there are.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Perceptron:
    """Layers of `tanh(x @ weights + bias)`, the last one without tanh."""

    def __init__(self, sizes: tuple[int, ...], last_gain: float, random: np.random.Generator) -> None:
        self.sizes = sizes
        gains = [1.0] * (len(sizes) - 2) + [last_gain]
        parts: list[NDArray[np.float64]] = []
        for gain, (inputs, outputs) in zip(gains, pairwise(sizes), strict=True):
            parts += [random.normal(0.0, gain / np.sqrt(inputs), inputs * outputs), np.zeros(outputs)]
        self.use(np.concatenate(parts).astype(np.float32))

    def use(self, parameters: Array) -> None:
        """Compute with this vector from now on; whoever changes it in place changes the network."""
        self.parameters = parameters
        self._layers = self.layers(parameters)

    def layers(self, vector: Array) -> list[tuple[Array, Array]]:
        """Weights (inputs, outputs) and bias (outputs,) of each layer: views of a vector laid out as `parameters`."""
        layers, start = [], 0
        for inputs, outputs in pairwise(self.sizes):
            bias, end = start + inputs * outputs, start + (inputs + 1) * outputs
            layers.append((vector[start:bias].reshape(inputs, outputs), vector[bias:end]))
            start = end
        return layers

    def forward(self, inputs: Array) -> list[Array]:
        """Activations of all layers, the input first and the output last; each (batch, size of the layer)."""
        activations = [inputs]
        for weights, bias in self._layers:
            if len(activations) > 1:
                np.tanh(activations[-1], out=activations[-1])
            output = activations[-1] @ weights
            output += bias
            activations.append(output)
        return activations

    def gradients(self, activations: list[Array], output_gradient: Array) -> Array:
        """Gradient for `parameters`, given that of the loss for the output, (batch, outputs)."""
        result = np.empty_like(self.parameters)
        gradient = output_gradient
        backwards = zip(self._layers, self.layers(result), activations[:-1], strict=True)
        for (weights, _), (for_weights, for_bias), inputs in reversed(list(backwards)):
            np.matmul(inputs.T, gradient, out=for_weights)
            np.sum(gradient, axis=0, out=for_bias)
            if inputs is not activations[0]:
                gradient = gradient @ weights.T
                gradient *= 1.0 - inputs * inputs
        return result


class Adam:
    """Adam (Kingma and Ba, 2015) on a vector of parameters, changed in place; gradients are cut to `longest`."""

    def __init__(self, parameters: Array, rate: float, longest: float = 0.5) -> None:
        self._parameters = parameters
        self._rate = rate
        self._longest = longest
        self._mean = np.zeros_like(parameters)
        self._square = np.zeros_like(parameters)
        self._steps = 0

    def step(self, gradient: Array) -> None:
        """One step down along `gradient`."""
        length = float(np.vdot(gradient, gradient)) ** 0.5
        gradient = gradient * min(1.0, self._longest / (length + 1e-6))
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient * gradient - self._square)
        self._steps += 1
        rate = self._rate * (1.0 - 0.999**self._steps) ** 0.5 / (1.0 - 0.9**self._steps)
        self._parameters -= rate * self._mean / (np.sqrt(self._square) + 1e-8)
