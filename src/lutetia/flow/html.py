"""A recorded flow as one HTML page that needs nothing else: no network, no fonts, no library.

The template lives in `page/`: the scripts are joined in the order the data goes through them. The page's
Content-Security-Policy names the hashes of its own style and script, so that nothing else can run or load,
whatever the steps and tensors are called.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from importlib.resources import files
from string import Template
from typing import Any

from lutetia.errors import fail
from lutetia.flow.model import Edge, Flow, Step, TensorInfo

SCRIPTS = ("data.js", "fold.js", "layout.js", "picture.js", "list.js", "panel.js", "page.js")


def html(flow: Flow) -> str:
    """The whole page, to be written as UTF-8."""
    if not (hasattr(flow, "steps") and hasattr(flow, "edges")):
        fail("flow", flow, "a Flow, with steps and edges")
    style = _part("page.css")
    script = "\n".join(_part(name) for name in SCRIPTS)
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    # One pass over the template: what is put in is never searched again.
    return Template(_part("page.html")).substitute(policy=policy, style=style, script=script, data=_data(flow))


def _part(name: str) -> str:
    """One file of the template, without comment lines and needless spaces: no string in it spans lines."""
    lines = files("lutetia.flow").joinpath("page", name).read_text(encoding="utf-8").splitlines()
    lines = [line for line in map(str.strip, lines) if line and not line.startswith("//")]
    if name.endswith(".js"):  # lines with a string or a pattern stay as they are
        lines = [line if re.search(r"[\"'`/]", line) else re.sub(r" ?([=<>?:,;{}()&|*]+) ?", r"\1", line) for line in lines]
    elif name.endswith(".css"):
        lines = [re.sub(r" ?([{};,]|: ) ?", lambda found: found[1].strip(), line) for line in lines]
    return "\n".join(lines)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(flow: Flow) -> str:
    """The flow as ASCII JSON (which takes care of U+2028 and U+2029) that cannot end the script element it stands in."""
    data = {"steps": [_step(step) for step in flow.steps], "edges": [_edge(edge) for edge in flow.edges]}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


# Rows, not objects: five thousand steps would repeat each key tens of thousands of times. `data.js` reads them in this order.
def _step(step: Step) -> list[Any]:
    return [
        step.name,
        step.part,
        [_tensor(tensor) for tensor in step.inputs],
        [_tensor(tensor) for tensor in step.outputs],
        step.parent,
        step.device,
        _number(step.start),
        _number(step.duration),
        step.thread,
        step.failed,
        # As Python writes them: JavaScript would round large integers and knows no NaN in JSON.
        [[name, str(value)] for name, value in step.attributes.items()],
    ]


def _tensor(tensor: TensorInfo) -> list[Any]:
    return [tensor.name, list(tensor.shape), tensor.dtype, tensor.bytes, tensor.device, tensor.value, tensor.producer]


def _edge(edge: Edge) -> list[Any]:
    return [edge.source, edge.target, edge.value, edge.kind == "in_place", edge.input]


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
