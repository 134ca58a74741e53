"""The kernels in three versions: in plain torch, compiled for the CPU, and in Triton. `protocol` says what a backend is."""

from lutetia.lut.kernels.choice import BACKENDS as BACKENDS
from lutetia.lut.kernels.choice import backend_for as backend_for
from lutetia.lut.kernels.choice import kernels as kernels
from lutetia.lut.kernels.choice import use_backend as use_backend
