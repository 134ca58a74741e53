"""A recorded flow as one self-contained HTML page, made by `lutetia._shared.pages`.

The template is in `page/`; its scripts are joined in the order in which data passes through them.
"""

from __future__ import annotations

import math
from typing import Any

from lutetia._shared.markup import Html
from lutetia._shared.pages import Page, asset, document, packed
from lutetia.errors import fail
from lutetia.flow.model import Edge, Flow, Step, TensorInfo

SCRIPTS = ("data.js", "fold.js", "layout.js", "picture.js", "list.js", "panel.js", "page.js")
PACKAGE = "lutetia.flow"


def flow_page(flow: Flow) -> str:
    """The whole page, to be written as UTF-8."""
    body = Html(asset("page.html", PACKAGE))
    return document(Page("Data flow", body, [page_style()], [page_script()], {"flow": page_data(flow)}, view="picture"))


def page_style() -> str:
    """The style of the page, as its policy allows it."""
    return "\n".join([asset("tokens.css"), asset("page.css", PACKAGE)])


def page_script() -> str:
    """The scripts of the page, as its policy allows them."""
    return "\n".join([asset("elements.js"), *(asset(name, PACKAGE) for name in SCRIPTS)])


def page_data(flow: Flow) -> str:
    """The steps and edges of a flow as JSON that is safe inside a page."""
    if not (hasattr(flow, "steps") and hasattr(flow, "edges")):
        fail("flow", flow, "a Flow, with steps and edges")
    return packed({"steps": [_step(step) for step in flow.steps], "edges": [_edge(edge) for edge in flow.edges]})


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
