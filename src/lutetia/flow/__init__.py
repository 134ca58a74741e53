"""What ran, on which tensors, and what flowed from step to step: recorded from real runs, then drawn."""

from lutetia.flow.model import Edge, Flow, Step, TensorInfo
from lutetia.flow.record import record, recording, step

__all__ = ["Edge", "Flow", "Step", "TensorInfo", "record", "recording", "step"]
