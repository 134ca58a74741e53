"""The summary page of a build: one HTML file that needs nothing else. All text is escaped; the pictures are inline SVG."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6577; --line: #d4d9e2; --back: #fff; --bar: #3b6fb6;
  --box: #eef3fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ef; --soft: #9aa5b8; --line: #3a4354; --back: #161b24; --bar: #6d9fe0; --box: #222a38; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.soft { color: var(--soft); }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .soft { fill: var(--soft); }
svg rect.box { fill: var(--box); stroke: var(--line); }
svg rect.bar { fill: var(--bar); }
svg path { stroke: var(--soft); fill: none; }
"""
BOX_WIDTH, BOX_HEIGHT, GAP = 460, 44, 26
MOST = 40  # boxes or bars of one picture


def page(report: dict[str, Any]) -> str:
    """The whole page."""
    title = f"{report['model']} as hardware"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='soft'>from {escape(report['checkpoint'])}, by lutetia {escape(report['lutetia'])}</p>",
        _rows(_facts(report), "What it is"),
        "<h2>The graph</h2>",
        "<p>Samples flow downwards; every arrow has data, valid and ready.</p>",
        _graph(report["graph"]),
        "<h2>Tables</h2>",
        _bars(_sizes(report["tables"]), "tables by address bits and output bits"),
        "<h2>What each node costs</h2>",
        "<p class='soft'>Bounds and estimates before synthesis.</p>",
        _bars([(f"{node['number']} {node['kind']}", node["luts"]) for node in report["graph"] if node["luts"]], "LUTs by node"),
        _nodes(report["graph"]),
        *_checks(report),
        _rows([(step["step"], step["left_out"] or f"{step['seconds']:.2f} s") for step in report["steps"]], "Steps"),
    ]
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
    return (
        f"<!doctype html>\n<html lang='en'><head>{head}<style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _facts(report: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("weights", f"{report['weights']:,}"),
        ("bits of an input", report["input_bits"]),
        ("bits of a weight", report["weight_bits"]),
        ("different tables", f"{len(report['tables']):,}"),
        ("lookups", f"{report['lookups']:,}"),
        ("latency in cycles", report["latency"]),
    ]


def _checks(report: dict[str, Any]) -> list[str]:
    simulated, proof, made = report["simulated"], report["proof"], report["synthesis"]
    found: list[tuple[str, Any]] = []
    found.append(
        ("simulation", f"{simulated['samples']} random samples, pauses on both sides: equal" if simulated else "left out")
    )
    if proof:
        found.append(("proved by SAT", f"{len(proof['proved'])} tables and stages"))
        found.append(("too wide for a proof", len(proof["skipped"])))
    else:
        found.append(("proof", "left out"))
    parts = [_rows(found, "Checks")]
    if made:
        names = ("luts", "flip_flops", "bram", "lut_ram", "wide_muxes", "carries", "dsp")
        counts: list[tuple[str, Any]] = [(name.replace("_", " "), made[name]) for name in names]
        if made["placed"]:
            counts.append(("place and route", made["placed"]))
        parts.append(_rows(counts, f"Synthesis for {made['target']} ({made['tool']})"))
    return parts


def _rows(facts: list[tuple[str, Any]], title: str) -> str:
    lines = "".join(f"<tr><td>{escape(str(name))}</td><td>{escape(str(value))}</td></tr>" for name, value in facts)
    return f"<h2>{escape(title)}</h2><table>{lines}</table>"


def _nodes(nodes: list[dict[str, Any]]) -> str:
    names = ("number", "kind", "name", "channels", "bits", "tables", "lookups", "widest", "table_bits", "luts", "flip_flops")
    head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(node[name]))}</td>" for name in names) + "</tr>" for node in nodes)
    return f"<div class='wide'><table><tr>{head}</tr>{body}</table></div>"


def _sizes(tables: list[dict[str, Any]]) -> list[tuple[str, int]]:
    counted = Counter((table["address_bits"], sum(table["outputs"])) for table in tables)
    return [(f"{bits} → {out} bits", count) for (bits, out), count in sorted(counted.items())]


def _bars(values: list[tuple[str, int]], about: str) -> str:
    """Horizontal bars, the longest as wide as the picture."""
    if not values:
        return "<p class='soft'>none</p>"
    shown = values[:MOST]
    most = max(value for _, value in shown)
    lines = []
    for at, (name, value) in enumerate(shown):
        y, width = 22 * at, 380 * value / most
        lines.append(f"<text x='150' y='{y + 15}' text-anchor='end'>{escape(name)}</text>")
        lines.append(f"<rect class='bar' x='160' y='{y + 3}' width='{width:.1f}' height='15' rx='2'/>")
        lines.append(f"<text class='soft' x='{168 + width:.1f}' y='{y + 15}'>{value:,}</text>")
    more = f"<p class='soft'>and {len(values) - MOST} more</p>" if len(values) > MOST else ""
    height = 22 * len(shown)
    return f"<svg role='img' aria-label='{escape(about)}' viewBox='0 0 640 {height}' width='100%'>{''.join(lines)}</svg>{more}"


def _graph(nodes: list[dict[str, Any]]) -> str:
    """Boxes from top to bottom; a link that skips boxes bends around them."""
    shown = nodes[:MOST]
    lines = []
    for at, node in enumerate(shown):
        y = at * (BOX_HEIGHT + GAP)
        label = f"{node['number']} {node['kind']}{' of ' + node['name'] if node['name'] else ''}"
        size = f"{node['channels']} channels, {node['bits']} bits" + (f", {node['lookups']} lookups" if node["lookups"] else "")
        lines.append(f"<rect class='box' x='90' y='{y}' width='{BOX_WIDTH}' height='{BOX_HEIGHT}' rx='6'/>")
        lines.append(f"<text x='104' y='{y + 18}'>{escape(label)}</text>")
        lines.append(f"<text class='soft' x='104' y='{y + 36}'>{escape(size)}</text>")
        lines += [_arrow(source, at) for source in node["sources"]]
    height = len(shown) * (BOX_HEIGHT + GAP)
    more = f"<p class='soft'>and {len(nodes) - MOST} more nodes</p>" if len(nodes) > MOST else ""
    return f"<svg role='img' aria-label='the graph' viewBox='0 0 640 {height}' width='100%'>{''.join(lines)}</svg>{more}"


def _arrow(source: int, target: int) -> str:
    top, bottom = source * (BOX_HEIGHT + GAP) + BOX_HEIGHT, target * (BOX_HEIGHT + GAP)
    if target - source == 1:
        return f"<path d='M 320 {top} V {bottom} m -5 -8 l 5 8 l 5 -8'/>"
    out = max(20, 80 - 12 * (target - source))
    return f"<path d='M 90 {top - 12} H {out} V {bottom + 12} H 90 m -8 -5 l 8 5 l -8 5'/>"
