"""Loaders of files that other programs write: ONNX nets, trees, decoders of transformers, tables of data, images by class."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lutetia.errors import LutetiaError
from lutetia.training.table_files import make_table, read_table_file


def use_all(files: Iterable[Path], use: Callable[[Path], object]) -> None:
    """Use every file; should any be refused, so is the whole, after the others."""
    errors = []
    for file in files:
        try:
            use(file)
        except LutetiaError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def use_table_file(path: Path) -> None:
    make_table(read_table_file(path), None, None)


def make_spreadsheet(folder: Path) -> None:
    """Numbers, words, gaps and quotes as text and as parquet."""
    import pyarrow
    from pyarrow import parquet

    rows = ["a,b,c,d", "1,red,0.5,0.5", '2,"a, b",,7', "3,,1e3,1", "4,red,-2,0"]
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    (folder / "rows.tsv").write_text("\n".join([rows[0], *rows[3:]]).replace(",", "\t"))
    columns = {"a": [1, 2, 3, 4], "b": ["red", "a, b", None, "red"], "c": [0.5, None, 1e3, -2.0], "d": [True, False, True, True]}
    parquet.write_table(pyarrow.table(columns), folder / "rows.parquet")


def make_samples(folder: Path) -> None:
    """Arrays with names, and images in a folder for each class."""
    from PIL import Image

    x, names = np.arange(12.0).reshape(4, 3), np.array(["a", "b", "c"])
    np.savez(folder / "rows.npz", x=x, y=np.array([0, 1, 2, 1]), feature_names=names, target_names=names)
    for number, kind in enumerate(("png", "bmp", "tif")):
        place = folder / "images" / "xyz"[number]
        place.mkdir(parents=True)
        Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * number).save(place / f"0.{kind}")


def make_onnx(folder: Path) -> None:
    """A net of convolution, norm, pooling and layers with quantisers of QONNX, and one with those of ONNX."""
    import onnx

    def write(name: str, shape: list[Any], nodes: list[Any], arrays: dict[str, Any]) -> None:
        value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
        constants = [onnx.numpy_helper.from_array(np.asarray(each), key) for key, each in arrays.items()]
        graph = onnx.helper.make_graph(nodes, "net", [value("x", kind, shape)], [value("y", kind, ["n", "m"])], constants)
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("qonnx.custom_op.general", 1)]
        data = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        (folder / name).write_bytes(data)

    def node(kind: str, inputs: str, output: str, **options: Any) -> Any:
        domain = "qonnx.custom_op.general" if kind == "Quant" else ""
        return onnx.helper.make_node(kind, inputs.split(), [output], domain=domain, **options)

    one, zero, bits = np.float32(1), np.float32(0), np.float32(2)
    many = {"one": one, "zero": zero, "bits": bits, "w": np.ones((2, 1, 2, 2), np.float32), "m": np.ones((2, 3), np.float32)}
    many |= {name: np.ones(2, np.float32) for name in ("scale", "shift", "mean", "variance")}
    layers = [
        node("Quant", "x one zero bits", "a", signed=0, narrow=0, rounding_mode="ROUND"),
        node("Conv", "a w", "b", pads=[0, 0, 1, 1], strides=[1, 1], group=1),
        node("BatchNormalization", "b scale shift mean variance", "c", epsilon=1e-3),
        node("Relu", "c", "d"),
        node("MaxPool", "d", "e", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "e", "f"),
        node("Flatten", "f", "g"),
        node("MatMul", "g m", "h"),
        node("Quant", "h one zero bits", "y", signed=1, narrow=1, rounding_mode="ROUND"),
    ]
    write("qonnx.onnx", ["n", 1, 3, 3], layers, many)
    few = {"s": np.float32(0.5), "z": np.uint8(0), "m": np.ones((4, 2), np.float32), "v": np.ones(2, np.float32)}
    pairs = [
        node("QuantizeLinear", "x s z", "a"),
        node("DequantizeLinear", "a s z", "b"),
        node("Gemm", "b m v", "c", alpha=1.0, transB=0),
        node("Add", "c v", "d"),
        node("Clip", "d", "e"),
        node("Constant", "", "k", value=onnx.numpy_helper.from_array(np.float32(2))),
        node("Mul", "e k", "y"),
    ]
    write("qdq.onnx", ["n", 4], pairs, few)


def use_onnx(path: Path) -> None:
    from lutetia.integrations.onnx_import import load

    net = load(path)
    sizes = [size for size in (net.stream.length, net.stream.height, net.stream.width) if size is not None]
    if net.stream.channels * int(np.prod(sizes, dtype=object)) < 10_000:  # its input is as large as it says
        net.model(torch.zeros(1, net.stream.channels, *sizes, dtype=torch.float64))


TREES = Path(__file__).parents[1] / "integrations" / "trees"


def make_trees(folder: Path) -> None:
    """Models of trees as LightGBM, XGBoost and CatBoost wrote them."""
    for name in (
        "lightgbm_zeros.txt",
        "xgboost_dart.json",
        "xgboost_classes.ubj",
        "catboost_binary.json",
        "catboost_classes.json",
        "lightgbm_words.txt",
        "xgboost_words.json",
        "xgboost_codes.ubj",
        "catboost_words.json",
    ):
        (folder / name).write_bytes((TREES / name).read_bytes())


def use_trees(path: Path) -> None:
    from lutetia.integrations.trees import read_trees

    model = read_trees(path).model
    if model.n_columns < 1000:  # its input is as large as it says
        model(torch.zeros(2, model.n_columns, dtype=torch.float64))


def make_decoder(folder: Path) -> None:
    """A tiny decoder of transformers and its tokenizer."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    sizes = {"vocab_size": 9, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=1, max_position_embeddings=16)).save_pretrained(folder)
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="c", eos_token="b").save_pretrained(folder)


def use_decoder(folder: Path) -> None:
    from lutetia.integrations.transformers.loading import load_decoder, load_model

    load_model(folder)  # which reads what the config says that it is
    load_decoder(folder, "eager")


def make_pooling(folder: Path) -> None:
    """What sentence-transformers writes beside an encoder: its modules, and how it pools."""
    modules = [{"idx": place, "path": path, "type": f"sentence_transformers.models.{kind}"} for place, (path, kind) in
               enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}')


def use_pooling(folder: Path) -> None:
    from lutetia.integrations.transformers.pooling import pooling_of

    pooling_of(folder)
