"""Small ONNX and QONNX nets, to be traced into tables and circuits.

    net = load("net.onnx")
    graph = trace(net.model, input=net.stream)

Quantisers are those of QONNX (`Quant`, `BipolarQuant`) or pairs of QuantizeLinear and DequantizeLinear. The net becomes torch
layers that compute in float64, bit for bit, what the file says. Needs onnx.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from lutetia.errors import ArgumentError, DataError, LutetiaError, require
from lutetia.files import read_bytes
from lutetia.integrations.onnx import LARGEST_FILE
from lutetia.precompute import Domain, DomainLike, PlusMinus, Quantise, Stream, domain_for

EACH: dict[str, Callable[..., Any]] = {
    "Relu": F.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Sign": torch.sign, "Round": torch.round,
    "Floor": torch.floor, "Ceil": torch.ceil, "Abs": torch.abs, "Neg": torch.neg,
}  # fmt: skip
ARITHMETIC = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.truediv}
MOST_NUMBERS = 1 << 24  # of what a layer gives for one sample: far more than any circuit has wires
NOTHING = ("Identity", "Dropout", "Cast")  # in a net that is evaluated in float64


class Imported(NamedTuple):
    """A net of torch layers, and its input stream."""

    model: nn.Module
    stream: Stream


class Value(NamedTuple):
    """The result of a node of the file: a node of the net, and the number of dimensions of its tensor."""

    node: fx.Node
    rank: int
    grid: tuple[Domain, float] | None = None  # of a QuantizeLinear, whose DequantizeLinear follows


def load(path: str | os.PathLike[str], domain: DomainLike | None = None) -> Imported:
    """Read a file with one input [N, C], [N, C, L] or [N, C, H, W] and one output.

    `domain`: the values of the input. It may be left out where the file quantises its input first.
    """
    onnx = require("onnx", "ONNX import")
    data = read_bytes(path, "an ONNX file", LARGEST_FILE)
    try:
        proto = onnx.load_model_from_string(data)
        onnx.checker.check_model(proto, full_check=False)
    except Exception as error:  # onnx and protobuf raise many kinds
        raise DataError(f"{path} is not a valid ONNX model: {error}") from error
    try:
        net = Import(onnx, proto.graph, str(path)).run(domain)
        sizes = [size for size in (net.stream.length, net.stream.height, net.stream.width) if size is not None]
        Shapes(net.model).run(torch.empty(1, net.stream.channels, *sizes, dtype=torch.float64, device="meta"))
    except LutetiaError:
        raise
    except Exception as error:  # numpy and torch raise many kinds where sizes or attributes contradict each other
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is an ONNX model whose parts do not fit together: {why}") from error
    return net


class Shapes(fx.Interpreter):
    """A run of a net on the meta device: it computes no numbers, and finds layers that do not fit or would be too large."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(copy.deepcopy(net).to("meta"))

    def run_node(self, n: fx.Node) -> Any:
        """The result of a node, of limited size."""
        value = super().run_node(n)
        if value.numel() > MOST_NUMBERS:
            raise DataError(f"{n} returns {value.numel():,} numbers for one sample, expected {MOST_NUMBERS:,} at most")
        return value


class Import:
    """One walk over the nodes of a file, which are in order."""

    def __init__(self, onnx: Any, graph: Any, path: str) -> None:
        self.onnx, self.file, self.path = onnx, graph, path
        self.root, self.graph = nn.Module(), fx.Graph()
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, Value] = {}
        self.given = ""  # what the quantiser of the input gives, which is the input itself: it lies on that grid
        for tensor in graph.initializer:
            self.constants[tensor.name] = self.array(tensor)

    def run(self, domain: DomainLike | None) -> Imported:
        inputs = [each for each in self.file.input if each.name not in self.constants]
        if len(inputs) != 1 or len(self.file.output) != 1:
            raise DataError(f"{self.path} has {len(inputs)} inputs and {len(self.file.output)} outputs, expected one of each")
        sizes = [size.dim_value for size in inputs[0].type.tensor_type.shape.dim]
        if not 2 <= len(sizes) <= 4 or not all(sizes[1:]):
            raise DataError(
                f"the input of {self.path} has the sizes {sizes}, expected [N, C], [N, C, L] or [N, C, H, W], all but N known"
            )
        first = self._first_grid(inputs[0].name) if domain is None else (domain, 1.0)
        self.values[inputs[0].name] = Value(self.graph.placeholder("input"), len(sizes))
        for node in self.file.node:
            self.convert(node)
        self.graph.output(self.value(self.file.output[0].name).node)
        names = {3: ("length",), 4: ("height", "width")}.get(len(sizes), ())
        stream = Stream(sizes[1], first[0], scale=first[1], **dict(zip(names, sizes[2:], strict=True)))
        return Imported(fx.GraphModule(self.root, self.graph).double().eval(), stream)

    def _first_grid(self, name: str) -> tuple[DomainLike, float]:
        """The domain and scale of the input, from the quantiser that alone reads it."""
        readers = [node for node in self.file.node if name in node.input]
        constant = {node.output[0] for node in self.file.node if node.op_type == "Constant"} | self.constants.keys()
        if len(readers) == 1 and readers[0].op_type in ("Quant", "BipolarQuant", "QuantizeLinear"):
            node = readers[0]
            for each in self.file.node:
                if each.op_type == "Constant" and each.output[0] in node.input:
                    self.convert(each)
            if all(each in constant for each in node.input[1:]):
                self.given = node.output[0]
                return self.grid(node)
        raise ArgumentError(f"{self.path} does not quantise its input first, expected domain=, such as UInt(8)")

    # ---- reading ---------------------------------------------------------------------------------------------------------

    def array(self, tensor: Any) -> np.ndarray:
        """The numbers of a tensor, floats as float64; not from another file."""
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            raise DataError(f"{tensor.name!r} of {self.path} is stored in another file, expected all numbers in this one")
        numbers = self.onnx.numpy_helper.to_array(tensor)
        return numbers.astype(np.float64) if numbers.dtype.kind == "f" else numbers

    def options(self, node: Any) -> dict[str, Any]:
        """The attributes of a node."""
        return {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}

    def value(self, name: str) -> Value:
        if name not in self.values:
            raise DataError(f"{self.path} reads {name!r} where it depends on no input, expected a value that does")
        return self.values[name]

    def constant(self, node: Any, position: int, default: Any = None) -> Any:
        """The constant input of a node at a position."""
        name = node.input[position] if position < len(node.input) else ""
        if not name:
            return default
        if name not in self.constants:
            raise self.refused(node, f"whose input {name!r} is computed", "a constant")
        return self.constants[name]

    def number(self, node: Any, position: int, default: float = 0.0) -> float:
        numbers = np.asarray(self.constant(node, position, default))
        if numbers.size != 1:
            raise self.refused(node, f"with {numbers.size} numbers as input {position}", "one: the same for all channels")
        return float(numbers.reshape(()))

    def refused(self, node: Any, has: str, expected: str) -> DataError:
        return DataError(f"{self.path} has a {node.op_type} ({node.name or node.output[0]}) {has}, expected {expected}")

    # ---- one node --------------------------------------------------------------------------------------------------------

    def convert(self, node: Any) -> None:
        """Add what a node of the file does to the net, or to the constants."""
        if node.op_type == "Constant":
            self.constants[node.output[0]] = self.array(self.options(node)["value"])
        elif node.input and all(name in self.constants for name in node.input if name):
            self.constants[node.output[0]] = self.folded(node)
        else:
            self.values[node.output[0]] = self.computed(node)

    def folded(self, node: Any) -> np.ndarray:
        """A node of constants: weights that are quantised, transposed or reshaped."""
        x = self.constants[node.input[0]]
        if node.op_type == "Transpose":
            return x.transpose(self.options(node).get("perm"))
        if node.op_type in ("Reshape", "Flatten"):
            return x.reshape(self.constants[node.input[1]]) if node.op_type == "Reshape" else x.reshape(len(x), -1)
        if node.op_type == "Quant":
            scale, zero, low, high = self.steps(node)
            self.check_broadcast(node, x, scale, zero)
            return (np.clip(np.round(x / scale + zero), low, high) - zero) * scale
        if node.op_type == "BipolarQuant":
            self.check_broadcast(node, x, self.constants[node.input[1]])
            return np.where(x >= 0, 1.0, -1.0) * self.constants[node.input[1]]
        if node.op_type == "DequantizeLinear":
            scale, zero = self.constants[node.input[1]], self.constant(node, 2, 0)
            axis = self.options(node).get("axis", 1)
            if np.ndim(scale) == 1 and np.size(scale) > 1:
                shape = [-1 if at == axis % x.ndim else 1 for at in range(x.ndim)]
                scale, zero = np.reshape(scale, shape), np.reshape(zero, shape) if np.size(zero) > 1 else zero
            self.check_broadcast(node, x, scale, zero)
            return (x.astype(np.float64) - np.asarray(zero, np.float64)) * scale
        if node.op_type in NOTHING:
            return x
        raise self.refused(node, "of constants", "weights that are quantised, transposed or reshaped")

    def check_broadcast(self, node: Any, x: np.ndarray, *others: Any) -> None:
        """Refuse scales and zero points that would make weights x larger than they are in the file."""
        shapes = [np.shape(each) for each in others]
        if np.broadcast_shapes(x.shape, *shapes) != x.shape:
            raise self.refused(node, f"of {x.shape} numbers with scales of {shapes}", "scales no larger than the numbers")

    def steps(self, node: Any) -> tuple[Any, Any, float, float]:
        """Scale, zero point, least and greatest step of a QONNX Quant."""
        options = self.options(node)
        mode = options.get("rounding_mode", b"ROUND")
        if mode not in (b"ROUND", "ROUND"):
            raise self.refused(node, f"with rounding_mode {mode!r}", "ROUND")
        bits, signed, narrow = self.number(node, 3), bool(options.get("signed", 1)), bool(options.get("narrow", 0))
        high = 2 ** (bits - signed) - 1 - (narrow and not signed)
        return self.constant(node, 1), self.constant(node, 2, 0.0), -(2 ** (bits - 1)) + narrow if signed else 0, high

    def grid(self, node: Any) -> tuple[Domain, float]:
        """The domain and scale of a quantiser of activations."""
        scale, zero = self.number(node, 1), 0.0 if node.op_type == "BipolarQuant" else self.number(node, 2)
        if node.op_type == "BipolarQuant":
            return PlusMinus(), scale
        if node.op_type == "Quant":
            _, _, low, high = self.steps(node)
            if zero % 2:  # the sum is rounded, halves to even: an odd zero point would turn them the other way
                raise self.refused(node, f"with the zero point {zero:g}", "an even one")
        else:
            kind = np.asarray(self.constant(node, 2, np.uint8(0))).dtype
            if kind.kind not in "iu":
                raise self.refused(node, f"to {kind}", "whole numbers")
            low, high = np.iinfo(kind).min, np.iinfo(kind).max
        return domain_for(int(low - zero), int(high - zero)), scale

    def computed(self, node: Any) -> Value:
        """A node that depends on the input."""
        kind, options = node.op_type, self.options(node)
        x = self.value(next(name for name in node.input if name in self.values))
        if kind in ("Quant", "BipolarQuant"):
            return x if node.output[0] == self.given else self.layer(Quantise(*self.grid(node)), x)
        if kind == "QuantizeLinear":
            return x._replace(grid=self.grid(node))
        if kind == "DequantizeLinear":
            if x.grid is None or x.grid[1] != self.number(node, 1):
                raise self.refused(node, "without its QuantizeLinear", "the two as a pair of one scale")
            plain = x._replace(grid=None)
            return plain if node.input[0] == self.given else self.layer(Quantise(*x.grid), plain)
        if x.grid is not None:
            raise self.refused(node, "after a QuantizeLinear", "a DequantizeLinear there")
        if kind in NOTHING:
            return x
        if kind in EACH:
            return self.call(EACH[kind], x.rank, x.node)
        if kind in ("Gemm", "MatMul"):
            return self.layer(self.linear(node, options), x)
        if kind == "Conv":
            return self.convolution(node, options, x)
        if kind == "BatchNormalization":
            scale, shift, mean, variance = (self.constant(node, position) for position in range(1, 5))
            return self.layer(self.norm(x.rank, scale, shift, mean, variance, options.get("epsilon", 1e-5)), x)
        if kind.endswith("Pool"):
            return self.layer(self.pool(node, options, x.rank), x)
        return self.rest(node, options, x)

    def rest(self, node: Any, options: dict[str, Any], x: Value) -> Value:
        """Arithmetic and shapes."""
        kind = node.op_type
        if kind == "Clip":
            low, high = (self.number(node, position, end) for position, end in ((1, -torch.inf), (2, torch.inf)))
            return self.call(torch.clamp, x.rank, x.node, low, high)
        if kind == "LeakyRelu":
            return self.call(F.leaky_relu, x.rank, x.node, options.get("alpha", 0.01))
        if kind in ARITHMETIC:
            return self.arithmetic(node, x)
        if kind in ("Flatten", "Reshape"):
            sizes = [-1, -1] if kind == "Flatten" else self.constant(node, 1).tolist()
            if options.get("axis", 1) != 1 or len(sizes) != 2:
                raise self.refused(node, f"to {sizes}", "one dimension after the batch")
            return self.layer(nn.Flatten(), x)._replace(rank=2)
        if kind == "Concat" and options.get("axis") == 1:
            return self.call(torch.cat, x.rank, [self.value(name).node for name in node.input], 1)
        if kind == "ArgMax" and options.get("axis", 0) in (1, -1):
            return self.call(torch.argmax, x.rank - 1, x.node, 1)
        raise self.refused(node, "", "layers, quantisers, activations, pooling, sums, flatten or argmax")

    def arithmetic(self, node: Any, x: Value) -> Value:
        """Two values, or a value and numbers: one for all, or one for each channel."""
        function = ARITHMETIC[node.op_type]
        if all(name in self.values for name in node.input):
            return self.call(function, x.rank, *(self.value(name).node for name in node.input))
        first = node.input[0] in self.values
        numbers = np.asarray(self.constant(node, 1 if first else 0))
        if numbers.size == 1:
            args = (x.node, float(numbers.reshape(()))) if first else (float(numbers.reshape(())), x.node)
            return self.call(function, x.rank, *args)
        each, axis = numbers.reshape(-1), numbers.ndim - x.rank + 1  # which axis of the numbers goes with the channels
        if node.op_type == "Div" and not first:
            raise self.refused(node, "of numbers by a value", "the value above")
        if axis < 0 or numbers.size != numbers.shape[axis]:
            raise self.refused(node, f"with numbers of {numbers.shape}", "one for each channel")
        sign = -1.0 if node.op_type == "Sub" and not first else 1.0
        if node.op_type in ("Add", "Sub"):
            scale, shift = np.full(each.shape, sign), -each if node.op_type == "Sub" and first else each
        else:
            scale, shift = each if node.op_type == "Mul" else 1 / each, np.zeros(each.shape)
        return self.layer(self.norm(x.rank, scale, shift, np.zeros(each.shape), np.ones(each.shape), 0.0), x)

    # ---- layers ----------------------------------------------------------------------------------------------------------

    def layer(self, module: nn.Module, x: Value) -> Value:
        name = f"layer{len(list(self.root.children()))}"
        self.root.add_module(name, module)
        return Value(self.graph.call_module(name, (x.node,)), x.rank)

    def call(self, function: Callable[..., Any], rank: int, *args: Any) -> Value:
        return Value(self.graph.call_function(function, args), rank)

    def linear(self, node: Any, options: dict[str, Any]) -> nn.Module:
        weight, bias = self.constant(node, 1), self.constant(node, 2) if node.op_type == "Gemm" else None
        if weight.ndim != 2 or options.get("transA"):
            raise self.refused(node, f"with weights of {weight.shape}", "a matrix, and the value as it is")
        weight = weight if options.get("transB") else weight.T
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        return filled(module, weight * options.get("alpha", 1.0), None if bias is None else bias * options.get("beta", 1.0))

    def convolution(self, node: Any, options: dict[str, Any], x: Value) -> Value:
        weight, bias = self.constant(node, 1), self.constant(node, 2)
        axes = weight.ndim - 2
        if axes != x.rank - 2 or axes not in (1, 2) or options.get("auto_pad", b"NOTSET") != b"NOTSET":
            raise self.refused(
                node, f"over {axes} axes with auto_pad {options.get('auto_pad')}", "explicit pads, one or two axes"
            )
        pads, groups = options.get("pads", [0] * 2 * axes), options.get("group", 1)
        even = pads[:axes] == pads[axes:]
        if not even:
            x = self.call(F.pad, x.rank, x.node, [size for at in reversed(range(axes)) for size in (pads[at], pads[axes + at])])
        kind = nn.Conv1d if axes == 1 else nn.Conv2d
        module = kind(
            weight.shape[1] * groups,
            weight.shape[0],
            weight.shape[2:],
            stride=tuple(options.get("strides", [1] * axes)),
            padding=tuple(pads[:axes]) if even else 0,
            dilation=tuple(options.get("dilations", [1] * axes)),
            groups=groups,
            bias=bias is not None,
        )
        return self.layer(filled(module, weight, bias), x)

    def norm(self, rank: int, scale: Any, shift: Any, mean: Any, variance: Any, epsilon: float) -> nn.Module:
        module = (nn.BatchNorm2d if rank == 4 else nn.BatchNorm1d)(len(scale), eps=epsilon).double()
        assert module.running_mean is not None
        assert module.running_var is not None
        module.running_mean.copy_(torch.from_numpy(np.array(mean)))
        module.running_var.copy_(torch.from_numpy(np.array(variance)))
        return filled(module, scale, shift)

    def pool(self, node: Any, options: dict[str, Any], rank: int) -> nn.Module:
        """Max and average pooling, over windows or over all."""
        kind, two = node.op_type, rank == 4
        if kind in ("GlobalAveragePool", "GlobalMaxPool"):
            if kind == "GlobalMaxPool":
                return nn.AdaptiveMaxPool2d(1) if two else nn.AdaptiveMaxPool1d(1)
            return nn.AdaptiveAvgPool2d(1) if two else nn.AdaptiveAvgPool1d(1)
        axes = len(options["kernel_shape"])
        pads = options.get("pads", [0] * 2 * axes)
        plain = pads[:axes] == pads[axes:] and not options.get("ceil_mode") and set(options.get("dilations", [1])) == {1}
        if kind not in ("MaxPool", "AveragePool") or not plain or (kind == "AveragePool" and any(pads)):
            raise self.refused(node, f"with pads {list(pads)}", "equal pads, none for averages, no ceil_mode, no dilations")
        sizes: Sequence[Any] = (tuple(options["kernel_shape"]), tuple(options.get("strides", [1] * axes)), tuple(pads[:axes]))
        if kind == "MaxPool":
            return nn.MaxPool2d(*sizes) if two else nn.MaxPool1d(*(size[0] for size in sizes))
        return nn.AvgPool2d(*sizes) if two else nn.AvgPool1d(*(size[0] for size in sizes))


def filled(module: Any, weight: Any, bias: Any) -> nn.Module:
    """A layer in float64 with these weights."""
    module = module.double()
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(np.array(weight, np.float64)))
        if bias is not None:
            module.bias.copy_(torch.from_numpy(np.array(bias, np.float64)))
    return module
