"""Nets of ONNX files as tables: against onnxruntime, or QONNX's definition where onnxruntime lacks the operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError, DataError
from lutetia.integrations.onnx_import import load
from lutetia.precompute import UInt, trace
from tools import optional_module

onnx = optional_module("onnx")
QONNX = "qonnx.custom_op.general"
rng = np.random.default_rng(5)


class Net:
    """An ONNX file, node by node."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.nodes, self.constants, self.last = shape, [], [], "x"

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, kind: str, *arrays: Any, inputs: tuple[str, ...] | None = None, **options: Any) -> str:
        """A node behind the last one, with constants as its further inputs."""
        names = [*(inputs or (self.last,)), *(self.constant(each) for each in arrays)]
        self.last = f"v{len(self.nodes)}"
        domain = QONNX if kind in ("Quant", "BipolarQuant") else ""
        self.nodes.append(onnx.helper.make_node(kind, names, [self.last], domain=domain, **options))
        return self.last

    def quant(self, scale: float, bits: int, signed: int = 1) -> str:
        return self.add(
            "Quant", np.float32(scale), np.float32(0), np.float32(bits), signed=signed, narrow=0, rounding_mode="ROUND"
        )

    def qdq(self, scale: float, zero: np.generic, behind: str | None = None) -> str:
        if behind is not None:
            self.last = behind
        self.add("QuantizeLinear", np.float32(scale), zero)
        return self.add("DequantizeLinear", np.float32(scale), zero)

    def save(self, path: Path) -> Path:
        kind = onnx.TensorProto.FLOAT
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            self.nodes, "net", [value("x", kind, ["n", *self.shape])], [value(self.last, kind, ["n", "m"])], self.constants
        )
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(QONNX, 1)]
        path.write_bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
        return path


def sixteenths(*shape: int) -> np.ndarray:
    return (rng.integers(-8, 8, shape) / 16).astype(np.float32)


def session(path: Path) -> Any:
    """onnxruntime as the file says: its optimiser turns quantised sums into others, which round elsewhere."""
    runtime = optional_module("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return runtime.InferenceSession(path, options)


def check(path: Path, x: np.ndarray, expected: np.ndarray, max_bits: int = 8) -> None:
    """What the circuit computes of the samples x is `expected`, bit for bit."""
    net = load(path)
    graph = trace(net.model, input=net.stream).precompute(max_bits=max_bits)
    steps = torch.from_numpy(np.round(x / net.stream.scale)).long()
    torch.testing.assert_close(graph.real(steps).float(), torch.from_numpy(expected), rtol=0, atol=0)


def qonnx_net(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Two layers, quantised as Brevitas writes them, with a batch norm between; rows x, and what they come to."""
    w, v, scale, shift = sixteenths(6, 10), sixteenths(4, 6), sixteenths(6), sixteenths(6)
    net = Net(10)
    net.quant(0.25, 3)
    first = net.last
    net.last = net.constant(w - np.float32(0.02))  # which rounds to w
    net.quant(0.0625, 4)
    weights = net.last
    net.last = net.add("Transpose", inputs=(weights,), perm=[1, 0])
    net.add("MatMul", inputs=(first, net.last))
    net.add("Mul", scale)
    net.add("Add", shift)
    net.add("Relu")
    net.quant(0.5, 2, signed=0)
    net.add("Gemm", v, transB=1)
    net.add("BipolarQuant", np.float32(0.5))
    x = (rng.integers(-4, 4, (50, 10)) / 4).astype(np.float32)
    hidden = np.clip(np.round(np.maximum((x @ w.T) * scale + shift, 0) / 0.5), 0, 3) * 0.5
    net.save(path)
    return x, np.where(hidden @ v.T >= 0, 0.5, -0.5).astype(np.float32)


def test_a_net_of_qonnx(tmp_path: Path) -> None:
    check(tmp_path / "net.onnx", *qonnx_net(tmp_path / "net.onnx"))


def test_a_net_in_the_executor_of_qonnx(tmp_path: Path) -> None:
    wrapper = optional_module("qonnx.core.modelwrapper")
    path = tmp_path / "net.onnx"
    x, _ = qonnx_net(path)
    model = wrapper.ModelWrapper(str(path))
    model.set_tensor_shape("x", [1, *x.shape[1:]])  # it wants whole shapes, so one row at a time
    model = model.transform(optional_module("qonnx.transformation.infer_shapes").InferShapes())
    execute, output = optional_module("qonnx.core.onnx_exec").execute_onnx, model.graph.output[0].name
    check(path, x, np.concatenate([execute(model, {"x": row[None]})[output] for row in x]))


def test_images_in_onnxruntime(tmp_path: Path) -> None:
    """Convolutions, a skip connection, pooling and an argmax, with pairs of QuantizeLinear and DequantizeLinear."""
    net = Net(2, 6, 6)
    start = net.qdq(1.0, np.uint8(0))
    net.add("Conv", (rng.integers(-2, 3, (2, 2, 3, 3)) / 8).astype(np.float32), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    net.add("BatchNormalization", *(np.float32([1, 2]) for _ in range(2)), np.float32([0, 1]), np.float32([1, 1]), epsilon=0.0)
    net.add("Clip", np.float32(-4), np.float32(3))
    body = net.qdq(1.0, np.int8(0))
    net.add("Add", inputs=(start, body))
    net.qdq(2.0, np.int8(0))
    net.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.add("Flatten", axis=1)
    net.add("Gemm", (rng.integers(-3, 4, (18, 4)) / 4).astype(np.float32), np.float32([0, 1, -1, 2]))
    net.qdq(0.5, np.int8(0))
    path = net.save(tmp_path / "net.onnx")
    x = rng.integers(0, 4, (20, 2, 6, 6)).astype(np.float32)
    (expected,) = session(path).run(None, {"x": x})
    model = load(path)
    torch.testing.assert_close(model.model(torch.from_numpy(x).double()).float(), torch.from_numpy(expected), rtol=0, atol=0)
    graph = trace(model.model, input=load(path, domain=UInt(2)).stream).precompute(max_bits=8)
    torch.testing.assert_close(graph.real(torch.from_numpy(x).long()).float(), torch.from_numpy(expected), rtol=0, atol=0)


def test_sequences(tmp_path: Path) -> None:
    """Asymmetric padding, a constant that is subtracted, an average over all samples."""
    net = Net(3, 8)
    net.add("Conv", sixteenths(4, 3, 3), sixteenths(4), kernel_shape=[3], pads=[2, 0])
    net.add("Sub", np.float32([[0.5], [0.25], [0], [-1]]))
    net.add("LeakyRelu", alpha=0.25)
    net.qdq(0.25, np.int8(0))
    net.add("GlobalAveragePool")
    net.add("Reshape", np.int64([0, -1]))
    path = net.save(tmp_path / "net.onnx")
    x = rng.integers(0, 4, (10, 3, 8)).astype(np.float32)
    (expected,) = session(path).run(None, {"x": x})
    net = load(path, domain=UInt(2))
    graph = trace(net.model, input=net.stream).precompute(max_bits=8)
    torch.testing.assert_close(graph.real(torch.from_numpy(x).long()).float(), torch.from_numpy(expected), rtol=0, atol=0)


def test_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"no onnx at all")
    with pytest.raises(DataError, match="is not a valid ONNX model"):
        load(path)
    net = Net(4)
    net.add("Relu")
    with pytest.raises(ArgumentError, match="does not quantise its input first, expected domain="):
        load(net.save(path))
    net.add("Softmax")
    with pytest.raises(DataError, match=r"has a Softmax .*expected layers, quantisers"):
        load(net.save(path), UInt(2))
    net = Net(4)
    net.add("Quant", np.float32(1), np.float32(1), np.float32(4), signed=0)
    with pytest.raises(DataError, match="with the zero point 1, expected an even one"):
        load(net.save(path))
    net = Net(4)
    net.add("QuantizeLinear", np.float32(1), np.uint8(0))
    net.add("Relu")
    with pytest.raises(DataError, match="after a QuantizeLinear, expected a DequantizeLinear there"):
        load(net.save(path))
    outside = Net(4)
    outside.add("Gemm", sixteenths(4, 4))
    outside.constants[0].data_location = onnx.TensorProto.EXTERNAL
    outside.constants[0].external_data.add(key="location", value="../../secret")
    with pytest.raises(DataError, match=r"lies in another file|is not a valid ONNX"):
        load(outside.save(path), UInt(2))


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    net = Net(4)
    net.add("Gemm", sixteenths(5, 3))  # of five inputs, and there are four
    with pytest.raises(DataError, match="whose parts do not fit together"):
        load(net.save(path), UInt(2))
    net = Net(4)
    net.add("Quant", np.float32(1), np.float32(0), np.float32(1e30), signed=1)
    with pytest.raises(DataError, match="whose parts do not fit together"):
        load(net.save(path))
    net = Net(2, 3)
    net.add("Conv", sixteenths(2, 1, 1), group=3)
    with pytest.raises(DataError, match="whose parts do not fit together"):
        load(net.save(path), UInt(2))
    net = Net(4)
    net.nodes.append(onnx.helper.make_node("Constant", [], ["c"], value_float=1.0))
    net.add("Add", inputs=("x", "c"))
    with pytest.raises(DataError, match="whose parts do not fit together"):
        load(net.save(path), UInt(2))


def test_a_small_file_does_not_fill_the_memory(tmp_path: Path) -> None:
    path, net = tmp_path / "net.onnx", Net(1, 4)
    net.add("Conv", sixteenths(1, 1, 1), pads=[10**9, 10**9])
    with pytest.raises(DataError, match="returns 2,000,000,004 numbers for one sample, expected 16,777,216 at most"):
        load(net.save(path), UInt(2))
    net = Net(4)
    weights = net.add("DequantizeLinear", np.float32([[2]]), inputs=(net.constant(np.zeros((30_000, 1), np.int8)),))
    net.nodes[-1].input[1] = net.constant(np.ones((1, 30_000), np.float32))  # as a product of both, 7 GB
    net.add("MatMul", inputs=("x", weights))
    with pytest.raises(DataError, match="expected scales no larger than the numbers"):
        load(net.save(path), UInt(2))


def test_a_clip_without_ends(tmp_path: Path) -> None:
    net = Net(4)
    net.add("Clip")
    x = torch.tensor([[0.0, 1, 2, 3]], dtype=torch.float64)
    assert torch.equal(load(net.save(tmp_path / "net.onnx"), UInt(2)).model(x), x)
