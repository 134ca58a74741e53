"""Random calls of public functions: sound arguments, of which one to three are replaced by others, wrong or just unusual.

A case is right when the call answers or raises an error of Lutetia's. Sizes stay small where large ones are allowed and would
only cost memory that the caller asked for.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lutetia import attention, models, precompute
from lutetia.precompute import Binary, Int, IOTable, PlusMinus, Stream, Ternary, UInt

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]
ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    3,
    7,
    2**31,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e300,
    "",
    "x",
    "auto",
    "\0",
    b"ab",
    (),
    [],
    [1],
    (2, 2),
    {},
    {"a": 1},
    [[1, 2], [3]],
    object(),
    torch.float32,
    "cuda:99",
    1 + 2j,
    print,
]
Made = Callable[["Wild"], tuple[Callable[..., object], dict[str, Any]]]


class Wild:
    """Draws everything from one generator, so that the seed of a case gives the same call again."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        torch.manual_seed(draw.randrange(2**31))

    def pick(self, group: Mapping[str, Made]) -> tuple[str, Callable[[], object]]:
        """A call of the group, as words and as a function."""
        name = self.draw.choice(list(group))
        function, arguments = group[name](self)
        for key in self.draw.sample(list(arguments), min(len(arguments), self.draw.choice((0, 1, 1, 1, 1, 2, 3)))):
            arguments[key] = self.other(arguments[key])
        words = f"{name}({', '.join(f'{key}={_shown(value)}' for key, value in arguments.items())})"
        return words, lambda: consume(function(**arguments))

    def other(self, value: Any) -> Any:
        """Something else in the place of a value: near it, of another kind, or anything."""
        if isinstance(value, Tensor) and self.draw.random() < 0.8:
            return self.other_tensor(value)
        if isinstance(value, int) and not isinstance(value, bool) and self.draw.random() < 0.5:
            return value + self.draw.choice((-2, -1, 1, 2, -value, -2 * value))
        if isinstance(value, list | tuple) and value and self.draw.random() < 0.5:
            items = list(value)
            items[self.draw.randrange(len(items))] = self.draw.choice(ODD)
            return type(value)(items) if type(value) in (list, tuple) else items
        return self.tensor() if self.draw.random() < 0.2 else self.draw.choice(ODD)

    def other_tensor(self, value: Tensor) -> Tensor:
        way = self.draw.randrange(9)
        if way == 0:
            return value.to(self.draw.choice([each for each in DTYPES if each != value.dtype]))
        if way == 1 and value.dim():
            return value.narrow(self.draw.randrange(value.dim()), 0, 0)
        if way == 2 and value.dim():
            return value.repeat(*(self.draw.choice((1, 2)) for _ in range(value.dim())))
        if way == 3:
            return value[None] if self.draw.random() < 0.5 or not value.dim() else value[0] if len(value) else value
        if way == 4 and value.dim() > 1:
            return value.transpose(self.draw.randrange(value.dim()), self.draw.randrange(value.dim()))
        if way == 5 and value.dtype in (torch.int32, torch.int64):
            return value.clone().fill_(self.draw.choice((-1, 0, 5, 1000, 2**31 - 1, -(2**31))))
        if way == 6 and value.is_floating_point():
            return value.clone().fill_(self.draw.choice((float("nan"), float("inf"), -float("inf"), 0.0, 1e4)))
        if way == 7:
            return value.flip(0) if value.dim() else value
        return value.to_sparse() if value.dim() and value.dtype not in (torch.bool, torch.float8_e4m3fn) else value

    def tensor(self) -> Tensor:
        shape = [self.draw.choice((0, 1, 2, 3, 5)) for _ in range(self.draw.randrange(5))]
        return torch.randint(-3, 9, shape).to(self.draw.choice(DTYPES))

    def one(self, *values: Any) -> Any:
        return self.draw.choice(values)


def consume(value: object) -> None:
    """Make lazy answers work."""
    if hasattr(value, "__next__"):
        for _ in itertools.islice(value, 100):  # type: ignore[call-overload]
            pass


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        numbers = value.flatten()[:9].tolist() if value.layout == torch.strided else value.layout
        return f"{value.dtype} {list(value.shape)} {numbers}"
    return repr(value)[:200]


# ---- attention -------------------------------------------------------------------------------------------------------


def _decode(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    batch, kv, ratio, active, d, longest = (
        wild.one(1, 2, 3),
        wild.one(1, 2),
        wild.one(1, 2, 3),
        wild.one(1, 1, 2, 4),
        wild.one(2, 8, 16),
        16,
    )
    dtype = wild.one(torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
    shape = (batch, kv, longest, d)
    arguments: dict[str, Any] = {
        "q": torch.randn(batch, kv * ratio, active, d).to(dtype),
        "k_cache": torch.randn(shape).to(dtype),
        "v_cache": torch.randn(shape).to(dtype),
        "seq_lens": torch.randint(active, longest + 1, (batch,), dtype=wild.one(torch.int32, torch.int64)),
    }
    if wild.draw.random() < 0.3:
        arguments |= {name: torch.randn(batch, kv, active, d).to(dtype) for name in ("k_new", "v_new")}
    options = {
        "scale": 0.5,
        "window": 4,
        "sink": torch.zeros(kv * ratio),
        "cores": wild.one(1, 2, 3),
        "shard": wild.one("auto", "batch", "sequence"),
        "sync": wild.one("lse", "ring", "max"),
        "backend": wild.one("auto", "cpu", "cores", "reference"),
        "batch_invariant": True,
        "k_scale": 2.0,
        "v_scale": torch.ones(kv),
        "policy": wild.one("cost", "neuron"),
    }
    arguments |= {name: options[name] for name in wild.draw.sample(list(options), wild.draw.randrange(4))}
    if wild.draw.random() < 0.15:
        pages = torch.randn(8, 4, kv, d).to(dtype)
        arguments |= {
            "k_cache": pages,
            "v_cache": pages.clone(),
            "page_table": torch.randint(0, 8, (batch, 4), dtype=torch.int32),
        }
    return attention.decode_attention, arguments


def _prefill(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    batch, kv, n, d = wild.one(1, 2), wild.one(1, 2), wild.one(1, 3, 6), wild.one(2, 4)
    arguments: dict[str, Any] = {
        "q": torch.randn(batch, 2 * kv, n, d),
        "k": torch.randn(batch, kv, 8, d),
        "v": torch.randn(batch, kv, 8, d),
    }
    options = {
        "lengths": torch.full((batch,), n),
        "start": torch.zeros(batch, dtype=torch.int64),
        "scale": 0.5,
        "window": 3,
        "sink": torch.zeros(2 * kv),
    }
    return attention.prefill, arguments | {
        name: options[name] for name in wild.draw.sample(list(options), wild.draw.randrange(4))
    }


def _kv_cache(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(k: Any, v: Any, lengths: Any, rows: Any, **sizes: Any) -> None:
        if not small(sizes):
            return
        cache = attention.KVCache(**sizes)
        cache.append(k, v)
        cache.append(k, v, lengths)
        cache.reset(rows)
        repr(cache)

    new = torch.randn(2, 1, 3, 4)
    return use, {
        "batch": 2,
        "n_kv_heads": 1,
        "max_length": 8,
        "head_dim": 4,
        "k": new,
        "v": new.clone(),
        "lengths": torch.tensor([1, 3]),
        "rows": wild.one(None, [0], torch.tensor([1])),
    }


def _paged_cache(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(length: Any, sequence: Any, k: Any, v: Any, lengths: Any, **sizes: Any) -> None:
        if not small(sizes):
            return
        cache = attention.PagedKVCache(**sizes)
        first = cache.allocate(length)
        cache.fork(first)
        cache.append([sequence], k, v, lengths)
        cache.page_table([sequence])
        cache.lengths([sequence])
        cache.free(sequence)

    new = torch.randn(1, 1, 2, 4)
    return use, {
        "n_pages": 6,
        "page_len": 2,
        "n_kv_heads": 1,
        "head_dim": 4,
        "length": 1,
        "sequence": 0,
        "k": new,
        "v": new.clone(),
        "lengths": wild.one(None, torch.tensor([1])),
    }


def _choose(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    sizes = {
        "lengths": [100, 7],
        "cores": 4,
        "n_q_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "s_active": 1,
        "element_bytes": 2,
        "capacity": None,
        "shard": wild.one("auto", "batch", "sequence"),
        "sync": "lse",
        "policy": wild.one("cost", "neuron"),
        "out_in_sb": False,
    }
    return lambda **given: attention.explain_choice(attention.choose_shard(**given)), sizes


# ---- models ----------------------------------------------------------------------------------------------------------

FIELDS: dict[str, Any] = {
    "vocab": 12,
    "context": 6,
    "width": 4,
    "n_layers": 1,
    "attention": "lut",
    "n_heads": 1,
    "n_kv_heads": None,
    "n_detectors": 2,
    "n_anchors": 2,
    "positional_dim": 1,
    "shared_positions": False,
    "algorithm": "auto",
    "rope_base": 100.0,
    "feed_forward": "lut",
    "ff_detectors": 2,
    "ff_anchors": 2,
    "ff_heads": 1,
    "ff_head_width": 2,
    "ff_multiple": 1,
    "read": "hard",
    "table_dropout": 0.0,
    "norm": "rms",
    "unembedding": "linear",
    "gradient": "dense",
    "sums": "float",
    "int_rescaler": 1.0,
    "initial_noise": 0.1,
    "seed": 0,
}


def small(value: Any) -> bool:
    """Whether sizes are such that a model of them may be built: a user may ask for a large one."""
    if isinstance(value, Mapping):
        return all(map(small, value.values()))
    if isinstance(value, list | tuple):
        return all(map(small, value))
    return not isinstance(value, int) or value < 20


def _transformer(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(**fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key not in ("seed", "rope_base")}):
            model = wild.one(models.LUTTransformer, models.DenseTransformer)(**fields)
            model(torch.zeros(1, 2, dtype=torch.int64))
            model.generate(torch.zeros(2, dtype=torch.int64), 2)
        else:
            models.TransformerConfig(**fields)

    fields = FIELDS | {
        "attention": wild.one("lut", "softmax"),
        "feed_forward": wild.one("lut", "projected", "dense"),
        "unembedding": wild.one("linear", "lut"),
    }
    return use, fields


MODELS: list[models.LUTTransformer] = []


def language_models() -> list[models.LUTTransformer]:
    if not MODELS:
        MODELS.extend(models.LUTTransformer(**(FIELDS | {"attention": kind})) for kind in ("lut", "softmax"))
    return MODELS


def _forward(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(tokens: Any, lengths: Any, batch: Any, more: Any) -> None:
        model(tokens, lengths)
        cache = model.new_cache(batch)
        model(tokens, lengths, cache)
        model(more, None, cache)

    model = wild.one(*language_models())
    lengths = wild.one(None, torch.tensor([1, 3]))
    return use, {"tokens": torch.randint(0, 12, (2, 3)), "lengths": lengths, "batch": 2, "more": torch.randint(0, 12, (2, 1))}


def _generate(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    prompt = wild.one(b"\1\2", torch.tensor([1, 2]), [b"\1", b"\2\3"], [torch.tensor([1])])
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.5,
        "stop": b"\1",
        "seed": 1,
        "generator": None,
        "stream": wild.one(True, False),
    }
    chosen = {name: options[name] for name in wild.draw.sample(list(options), wild.draw.randrange(4))}
    model = wild.one(*language_models())

    def use(prompts: Any, max_new_tokens: Any, **more: Any) -> object:
        if isinstance(max_new_tokens, int) and max_new_tokens > 100:
            max_new_tokens = 9  # as long as one likes
        return model.generate(prompts, max_new_tokens, **more)

    return use, {"prompts": prompt, "max_new_tokens": 3, **chosen}


def _classifier(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    layers: list[dict[str, Any]] = [
        {
            "kind": "projection2d",
            "out_shape": [3, 3],
            "receptive_field": 2,
            "projection": 2,
            "n_anchors": 2,
            "grid": 2,
            "keep": 0.5,
        },
        {"kind": "projected", "n_outputs": 4, "heads": 2, "head_width": 3, "n_detectors": 2, "n_anchors": 2},
        {"kind": "lut", "n_outputs": 3, "n_detectors": 2, "n_anchors": 2, "read": "confidence2"},
    ]
    layer = wild.one(*layers)
    if wild.draw.random() < 0.5:
        key = wild.one(*layer)
        layer[key] = wild.other(layer[key])

    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            wild.one(models.LUTClassifier, models.DenseClassifier)(**fields)(x)
        else:
            models.ClassifierConfig(**fields)

    return use, {
        "x": torch.randn(2, 4, 4),
        "input_shape": (4, 4),
        "n_classes": 3,
        "layers": [layer],
        "norm": wild.one("none", "rms", "layer"),
        "readout": wild.one("linear", "lut"),
        "readout_detectors": 2,
        "readout_anchors": 2,
        "readout_read": "hard",
        "gradient": "dense",
        "sums": "float",
        "int_rescaler": 1.0,
        "initial_noise": 0.1,
        "seed": 0,
    }


def _votes(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            model = models.VotesClassifier(**fields)
            model(x)
            model.graph()
        else:
            models.VotesConfig(**fields)

    return use, {
        "x": torch.rand(2, 2, 2),
        "input_shape": (2, 2),
        "n_classes": 2,
        "n_tables": 4,
        "k": 2,
        "bits": 3,
        "thresholds": (3, 4),
        "temperature": 1.0,
        "low": 0.0,
        "high": 1.0,
        "seed": 0,
    }


def _votes_module(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **fields: Any) -> None:
        if small({key: value for key, value in fields.items() if key != "seed"}):
            models.Votes(**fields)(x)

    return use, {
        "x": torch.randint(0, 8, (2, 4)),
        "n_inputs": 4,
        "n_classes": 2,
        "n_tables": 4,
        "k": 2,
        "bits": 3,
        "thresholds": (3, 4),
        "shape": wild.one(None, (2, 2)),
        "temperature": 1.0,
        "seed": 0,
    }


def _files(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    function = wild.one(models.load, models.verify, models.read_config, models.in_run)
    return function, {"path": wild.one("none", "/dev/null", "/dev/zero", ".", "", "a" * 300)}


# ---- precompute ------------------------------------------------------------------------------------------------------


def _table(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(inputs: Any, outputs: Any, domain: Any, default: Any, asked: Any, groups: Any) -> None:
        table = IOTable(inputs, outputs, domain=domain, default=default)
        table(asked)
        table.pairs()
        table.output_domain  # noqa: B018
        repr(table)
        table.grouped(groups)

    return use, {
        "inputs": wild.one(None, torch.tensor([[0, 0], [0, 1], [1, 1]])),
        "outputs": wild.one(torch.arange(4)[:, None], torch.arange(3)[:, None]),
        "domain": wild.one(None, Binary(), (Binary(), Binary()), Binary),
        "default": wild.one(None, (0,)),
        "asked": torch.tensor([[0, 1]]),
        "groups": 1,
    }


def _pairs(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return IOTable.from_pairs, {
        "pairs": [((0, 1), (1,)), ((1, 1), (0,))],
        "domain": wild.one(None, Int(3), UInt(2)),
        "default": None,
    }


def _of(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    layer = wild.one(
        lambda x: x.sum(1, keepdim=True), nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 1), precompute.Quantise(Ternary()))
    )
    return IOTable.of, {
        "layer": layer,
        "domain": wild.one(Binary(), UInt(3), (Int(2), Ternary()), PlusMinus),
        "n_inputs": wild.one(None, 2),
    }


def _domain(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(bits: Any, signed: Any, low: Any, high: Any, step: Any, values: Any) -> None:
        domain = precompute.Domain(bits, signed, low, high, step)
        domain.check("values", values)
        domain.decode(domain.encode(values))
        if domain.radix < 100:
            domain.values()
            precompute.enumerate_rows([domain, Binary()])
        precompute.pack([domain], values[..., None])
        str(domain)

    return use, {"bits": 3, "signed": wild.one(True, False), "low": 0, "high": 3, "step": 1, "values": torch.tensor([0, 1, 3])}


def _makers(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return wild.one(Int, UInt), {"bits": wild.one(1, 4, 53)}


def _rows(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(domains: Any, begin: Any, end: Any, dtype: Any) -> None:
        if not isinstance(end, int) or end < 1000:
            precompute.enumerate_rows(domains, begin, end, dtype)

    return use, {
        "domains": (Binary(), Int(2)),
        "begin": 0,
        "end": wild.one(None, 5),
        "dtype": wild.one(torch.int64, torch.float32),
    }


def _pack(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return precompute.pack, {"domains": (Binary(), Int(2)), "rows": torch.tensor([[0, 1], [1, -2]])}


def _quantise(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return precompute.quantise, {
        "x": torch.randn(3, 2),
        "domain": wild.one(Binary(), Int(3), PlusMinus, Ternary()),
        "scale": wild.one(1.0, 0.25),
    }


def _quantise_weights(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(module: Any, domain: Any) -> None:
        precompute.quantise_weights(module, domain)(torch.randn(1, 4))

    modules = (nn.Linear(4, 3), precompute.SparseLinear(4, 3, 2))
    return use, {"module": wild.one(*modules), "domain": wild.one(Int(3), PlusMinus, Ternary())}


def _sparse_linear(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    return precompute.SparseLinear(4, 3, 2), {"x": torch.randn(2, 4)}


def _encoder(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, **options: Any) -> None:
        n_inputs = options["n_inputs"]
        if not isinstance(n_inputs, int) or n_inputs < 1000:
            precompute.encoder(**options)(x)

    ends = wild.one((0.0, 1.0), ([0.0, -1.0, 2.0], [1.0, 1.0, 2.5]))
    return use, {
        "x": torch.rand(2, 3),
        "bits": wild.one(1, 4, 8),
        "low": ends[0],
        "high": ends[1],
        "n_inputs": 3,
        "affine": wild.one(None, True, False),
    }


def _trace(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(model: Any, channels: Any, dtype: Any, x: Any, max_bits: Any, budget: Any, k: Any, language: Any, name: Any) -> None:
        if isinstance(channels, int) and channels > 50:
            return
        graph = precompute.trace(model, Stream(channels=channels, dtype=dtype))
        graph(x)
        precompute.trace_values(graph, x)
        lowered = graph.precompute(max_bits).dedupe().fuse(budget)
        lowered.cost(k)
        lowered.mermaid()
        lowered.emit(language, name=name).testbench()

    layers = nn.Sequential(precompute.SparseLinear(4, 3, 2), precompute.Quantise(UInt(2)), nn.ReLU())
    precompute.quantise_weights(layers[0], Ternary())
    return use, {
        "model": layers,
        "channels": 4,
        "dtype": wild.one(Binary(), UInt(2)),
        "x": torch.randint(0, 2, (3, 4)),
        "max_bits": 10,
        "budget": 8,
        "k": wild.one(4, 6),
        "language": wild.one("verilog", "vhdl"),
        "name": wild.one("top", "always", "a b", ""),
    }


def _decompose(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(module: Any, n_inputs: Any, domain: Any) -> None:
        units = precompute.decompose(module, n_inputs=n_inputs)
        units.sizes  # noqa: B018
        IOTable.of(units[0], domain)

    return use, {
        "module": wild.one(
            nn.Linear(3, 2), nn.Conv2d(1, 1, 2), precompute.SparseLinear(4, 3, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        ),
        "n_inputs": None,
        "domain": wild.one(Binary(), Ternary()),
    }


def _network(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(x: Any, labels: Any, model: Any, **options: Any) -> None:
        network = precompute.lut_network(model, **options)
        network(x)
        network.classes(x)
        network.report(x, labels)
        precompute.fit_bits(model, x, labels)

    layer = {"kind": "lut", "n_outputs": 3, "n_detectors": 2, "n_anchors": 2}
    model = models.LUTClassifier(input_shape=(4,), n_classes=3, layers=[layer], readout="none", seed=0)
    return use, {
        "x": torch.rand(5, 4),
        "labels": torch.randint(0, 3, (5,)),
        "model": model,
        "bits": 3,
        "weight_bits": 4,
        "low": 0.0,
        "high": 1.0,
        "argmax": True,
    }


def _claims(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(domain: Any, groups: Any) -> None:
        module = precompute.precomputable(domain=domain, groups=groups)(nn.Linear(4, 2, bias=False))
        precompute.decompose(module)

    return use, {
        "domain": wild.one(None, Binary()),
        "groups": wild.one(None, 1, 2, ((2, 1), (2, 1)), (((0, 1, 2, 3), (0,)), ((0, 1, 2, 3), (1,)))),
    }


GROUPS: dict[str, dict[str, Made]] = {
    "attention": {
        "decode_attention": _decode,
        "prefill": _prefill,
        "KVCache": _kv_cache,
        "PagedKVCache": _paged_cache,
        "choose_shard": _choose,
    },
    "models": {
        "transformer": _transformer,
        "forward": _forward,
        "generate": _generate,
        "classifier": _classifier,
        "votes": _votes,
        "Votes": _votes_module,
        "files": _files,
    },
    "precompute": {
        "IOTable": _table,
        "from_pairs": _pairs,
        "of": _of,
        "Domain": _domain,
        "Int": _makers,
        "enumerate_rows": _rows,
        "pack": _pack,
        "quantise": _quantise,
        "quantise_weights": _quantise_weights,
        "SparseLinear": _sparse_linear,
        "encoder": _encoder,
        "trace": _trace,
        "decompose": _decompose,
        "lut_network": _network,
        "precomputable": _claims,
    },
}
