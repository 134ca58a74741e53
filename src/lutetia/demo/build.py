"""The digit network as Verilog: simulated, proved, synthesised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lutetia import report
from lutetia.demo.telling import Context, Told
from lutetia.errors import JobError
from lutetia.report import Check

SAID = {"simulation": "simulating", "proof": "proving", "synthesis": "counting"}
SIMULATED = 50  # digits
SHOWN = (
    "The digit network in whole numbers. The folder circuit, beside this page, holds its Verilog; digits.html runs the same "
    "numbers in a browser: draw a digit there."
)


def tell(context: Context) -> Told:
    from lutetia.precompute import CHECK, OPTIMISE, VERILOG, Build, BuildStep, integer_model, lut_network, model_page, run_steps

    if context.digits is None:
        raise JobError("there is nothing to build: no network was trained before this chapter")
    digits = context.digits
    network = lut_network(digits.model, bits=4, weight_bits=5)
    measured = network.report(digits.images, digits.labels)
    inputs = network.quantise(digits.images[:SIMULATED])
    build = Build(network.graph, samples=inputs)

    def around(step: BuildStep, job: Callable[[], None]) -> None:
        context.say(SAID.get(step.name, step.name))
        job()

    run_steps(build, (*OPTIMISE, VERILOG), around)
    folder = context.out / "circuit"
    build.hardware["verilog"].save(folder)
    run_steps(build, CHECK, around)
    checks = _checks(build.report)
    facts = _facts(build.report)
    shown = facts | _accuracies(measured)
    context.circuit = report.circuit(build.graph, x=inputs[:6], checks=checks, facts=shown, said=SHOWN)
    if facts:
        context.figures["LUT6 of an FPGA for the digit reader"] = facts["LUT6"]
    drawn = context.out / "digits.html"
    drawn.write_text(model_page(integer_model(digits.model), "Draw a digit"), encoding="utf-8")
    said = f"the digit network is now Verilog, and reads {measured['integer_accuracy']:.1%} correctly in whole numbers"
    return Told(
        f"{said}; draw a digit in {drawn.name}", (folder, drawn), "\n".join(f"    {check.name}: {check.said}" for check in checks)
    )


def _checks(told: dict[str, Any]) -> list[Check]:
    """What was checked, or why it was not."""
    left = {step["step"]: step["left_out"] for step in told["steps"]}
    simulated, proof, made = told["simulated"], told["proof"], told["synthesis"]
    checks = []
    if simulated:
        said = f"{simulated['samples']} digits, with stalls, in {simulated['by']}: all equal"
    else:
        said = f"{left['simulation']}: only the integer interpreter ran"
    checks.append(Check("simulation against the integer model", True if simulated else None, said))
    said = proof["said"] if proof else left["proof"]
    checks.append(Check("proof against the integer model", True if proof else None, said))
    said = f"{made['luts']:,} LUT6 and {made['flip_flops']:,} flip-flops ({made['tool']})" if made else left["synthesis"]
    checks.append(Check("synthesis", True if made else None, said))
    return checks


def _facts(told: dict[str, Any]) -> dict[str, str]:
    made = told["synthesis"]
    return {"LUT6": f"{made['luts']:,}", "flip-flops": f"{made['flip_flops']:,}"} if made else {}


def _accuracies(measured: dict[str, float]) -> dict[str, str]:
    return {
        "accuracy of the float model": f"{measured['float_accuracy']:.1%}",
        "accuracy of the circuit": f"{measured['integer_accuracy']:.1%}",
    }
