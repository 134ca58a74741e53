"""Other methods than relevance, to compare with.

Each is a function of a model, its inputs and a target. The inputs are those of `attribute`: a tensor [B, ...], a tuple of
arguments, or a mapping of keyword arguments; the model computes their rows independently. What is returned is shaped like the
inputs that are explained: a tensor, a tuple with None for the others, or a mapping without them. Tensors of floats are explained;
methods that replace values explain those that have a baseline, where it is a tuple or a mapping, tokens too. The target is one of
`attribute`'s: None (each row's largest output), an int, one per row, a tuple such as (position, class), `Contrast`, a
floating-point tensor of weights shaped like the output, the name of an output, or a function of the output, which returns a
number, or several to add up, for each row.
"""

from lutetia.relevance.methods.channels import grad_cam
from lutetia.relevance.methods.differences import deeplift
from lutetia.relevance.methods.groups import kernel_shap, lime, shapley
from lutetia.relevance.methods.removing import ablation, occlusion
from lutetia.relevance.methods.slopes import expected, gradient, integrated, smooth

__all__ = [
    "ablation",
    "deeplift",
    "expected",
    "grad_cam",
    "gradient",
    "integrated",
    "kernel_shap",
    "lime",
    "occlusion",
    "shapley",
    "smooth",
]
