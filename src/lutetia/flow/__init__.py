"""What ran, on which tensors, and what flowed from step to step: recorded from real runs, then drawn."""

from typing import TYPE_CHECKING

from lutetia._shared.doors import lazy_door
from lutetia.flow.model import Edge, Flow, Step, TensorInfo
from lutetia.flow.record import Reporter, record, recording, step

if TYPE_CHECKING:
    from lutetia.flow.html import flow_page, page_data, page_script, page_style
    from lutetia.flow.mermaid import MERMAID_LIMIT, mermaid_label

__all__ = ["Edge", "Flow", "Step", "TensorInfo", "record", "recording", "step"]

# Drawing, for the packages that draw more than flows: loaded when touched.
__getattr__, __dir__ = lazy_door(
    __name__, {"html": "flow_page page_data page_script page_style", "mermaid": "MERMAID_LIMIT mermaid_label"}
)
