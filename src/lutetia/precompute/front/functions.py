"""The functions and methods that `trace` knows."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F

RISING = {torch.relu, F.relu, F.relu6, torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, torch.sign, torch.round, torch.floor,
          torch.ceil, torch.clamp, F.hardtanh, "relu", "sigmoid", "tanh", "sign", "round", "floor", "ceil", "clamp"}  # fmt: skip
OTHERS = {torch.abs, torch.neg, operator.neg, torch.square, torch.rsqrt, F.leaky_relu, F.gelu, F.silu, F.hardswish}
ELEMENTWISE = {*RISING, *OTHERS, "abs", "neg", "square", "rsqrt"}
ARITHMETIC = {
    operator.add,
    operator.iadd,
    torch.add,
    operator.sub,
    torch.sub,
    operator.mul,
    torch.mul,
    operator.truediv,
    torch.div,
}
ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
SUBTRACT = {operator.sub, torch.sub, "sub"}
MULTIPLY = {operator.mul, torch.mul, "mul"}
