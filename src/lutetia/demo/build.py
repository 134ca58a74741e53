"""The digits' network as Verilog: simulated, proved, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lutetia import report
from lutetia.demo.telling import Context, Told
from lutetia.errors import JobError, MissingFeatureError
from lutetia.report import Check

if TYPE_CHECKING:
    from lutetia.precompute import Hardware, LUTNetwork

SIMULATED = 50  # digits


def tell(context: Context) -> Told:
    from lutetia.precompute import lut_network

    if context.digits is None:
        raise JobError("there is nothing to build: no network was trained before this chapter")
    digits = context.digits
    network = lut_network(digits.model, bits=4, weight_bits=5)
    measured = network.report(digits.images, digits.labels)
    hardware = network.graph.emit("verilog")
    folder = context.out / "circuit"
    hardware.save(folder)
    inputs = network.quantise(digits.images[:SIMULATED])
    checks = [_simulated(context, hardware, network, inputs), _proved(context, hardware)]
    counted, facts = _counted(context, hardware)
    checks.append(counted)
    context.circuit = report.circuit(network.graph, x=inputs[:6], checks=checks, facts=facts | _accuracies(measured))
    if facts:
        context.figures["the circuit"] = ", ".join(f"{value} {name}" for name, value in facts.items())
    told = "; ".join(check.said for check in checks)
    return Told(
        f"the digits' network is Verilog now, {measured['integer_accuracy']:.1%} right in whole numbers: {told}", (folder,)
    )


def _simulated(context: Context, hardware: Hardware, network: LUTNetwork, inputs: Tensor) -> Check:
    from lutetia.precompute import SIMULATORS

    context.say("simulating")
    name = "simulation against the integer model"
    try:
        tool = hardware.simulator()
        same = torch.equal(hardware.simulate(inputs, tool=tool), network.graph(inputs))
    except MissingFeatureError as error:
        return Check(name, None, f"not simulated, the integer interpreter alone ran ({error})")
    if not same:
        raise JobError("the simulated circuit does not give what the integer model gives")
    return Check(name, True, f"{len(inputs)} digits simulated with stalls in {SIMULATORS[tool]}, all equal to the integer model")


def _proved(context: Context, hardware: Hardware) -> Check:
    context.say("proving")
    try:
        proof = hardware.prove()
    except MissingFeatureError as error:
        return Check("proof by SAT", None, f"not proved ({error})")
    return Check("proof by SAT", proof.ok, str(proof))


def _counted(context: Context, hardware: Hardware) -> tuple[Check, dict[str, str]]:
    context.say("counting")
    try:
        made = hardware.synthesize("lut6")
    except MissingFeatureError as error:
        return Check("synthesis", None, f"not synthesised ({error})"), {}
    return Check("synthesis", True, str(made)), {"LUT6": f"{made.luts:,}", "flip-flops": f"{made.flip_flops:,}"}


def _accuracies(measured: dict[str, float]) -> dict[str, str]:
    return {
        "accuracy of the float model": f"{measured['float_accuracy']:.1%}",
        "accuracy of the circuit": f"{measured['integer_accuracy']:.1%}",
    }
