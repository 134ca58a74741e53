"""The drawings of a run on cores: the Mermaid diagram read line by line, the page looked at in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from attention.decode_oracle import make
from lutetia import flow
from lutetia.attention import timeline
from lutetia.attention.cores import CoresRun, simulate
from lutetia.errors import ArgumentError
from lutetia.flow import Flow, Step

if TYPE_CHECKING:
    from browser import OpenPage

pytest_plugins = ["browser"]


def recorded(n: int = 2, lengths: tuple[int, ...] = (32, 17), **options: Any) -> tuple[Flow, CoresRun]:
    case = make(batch=len(lengths), lengths=lengths, capacity=max(lengths), head_dim=8)
    with flow.record() as run:
        found = simulate(case.q, case.k, case.v, **case.arguments, **{"cores": n, "sync": "lockstep", "tile": 8, **options})
    return run, found


def arrows(text: str) -> list[tuple[int, int, str]]:
    found = re.findall(r"^ +c(\d+)->>c(\d+): (.*)$", text, re.MULTILINE)
    return [(int(source), int(target), label) for source, target, label in found]


# ---- Mermaid ---------------------------------------------------------------------------------------------------------

LOCKSTEP = """\
sequenceDiagram
    participant c0 as core 0
    participant c1 as core 1
    Note over c0,c1: compute_tile_params<br/>allocate_fa_buffers
    loop for fa_tile_idx in range(2)
        Note over c0,c1: compute_fa_tile_context<br/>allocate_qk_buffers<br/>load_mask<br/>compute_qk_matmul<br/>\
cascaded_max_reduce: transpose_max_psum
        c0->>c1: qk_max_buf, 32 B
        c1->>c0: qk_max_buf, 32 B
        Note over c0,c1: cascaded_max_reduce: fa_update_running_max<br/>compute_exp_qk<br/>\
cascaded_sum_reduction: tile_sum_reduction
        c0->>c1: exp_sum, 32 B
        c1->>c0: exp_sum, 32 B
        Note over c0,c1: cascaded_sum_reduction: fa_update_running_sum<br/>compute_pv_matmul_and_store: pv_matmul<br/>\
compute_pv_matmul_and_store: fa_accumulate_output
    end
    Note over c0,c1: fa_finalize_and_store: reciprocal
    c0->>c1: fa_running_output, 256 B
    c1->>c0: fa_running_output, 256 B
    Note over c0,c1: fa_finalize_and_store: add_partial_outputs
    Note over c0: fa_finalize_and_store: dma_copy
"""


def test_the_drawing_of_sequence_sharding() -> None:
    run, _ = recorded()
    assert timeline.sequence(run) == LOCKSTEP


def test_the_drawing_of_batch_sharding() -> None:
    run, _ = recorded(shard="batch", out_in_sb=True)
    text = timeline.sequence(run)
    loop = text[text.index("loop for fa_tile_idx in range(3)") : text.index("    end\n")]
    assert arrows(loop) == []  # no message in the loop
    assert arrows(text) == [(0, 1, "out, 128 B"), (1, 0, "out, 128 B")]
    assert text.index("dma_copy") < text.index("c0->>c1") < text.index("hold_whole_output")


def test_the_drawing_in_the_docs_is_made_by_a_run() -> None:
    drawn = (Path(__file__).parents[2] / "docs" / "diagrams" / "lockstep.mmd").read_text(encoding="utf-8")
    q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, 16)
    with flow.record() as run:
        simulate(q, k, v, seq_lens=torch.tensor([40, 33]), cores=2, tile=10, shard="sequence", sync="lockstep")
    assert timeline.sequence(run) == drawn


def test_every_message_of_a_run_is_drawn() -> None:
    run, found = recorded(n=3, lengths=(20, 3), tile=100)
    drawn = arrows(timeline.sequence(run))
    wanted = [(m.sender, m.receiver, f"{m.tag.split(' of tile')[0]}, round {m.round}, {m.bytes:,} B") for m in found.messages]
    assert sorted(drawn) == sorted(wanted)
    assert len(drawn) == 3 * 2 * 3


def test_tiles_that_differ_are_drawn_each() -> None:
    run, found = recorded(n=3, sync="lse", tile=4, lengths=(25,))
    assert found.num_fa_tiles == [2, 2, 3]
    assert re.findall(r"loop for (.*)", timeline.sequence(run)) == ["fa_tile_idx in range(2)", "fa_tile_idx in range(2, 3)"]


def test_many_cores_stay_within_what_mermaid_draws() -> None:
    run, _ = recorded(n=24, lengths=(48,), tile=1)
    text = timeline.sequence(run)
    assert len(text) <= 50_000
    plain = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), text)
    assert f"qk_max_buf: {24 * 23} messages, {24 * 23 * 16:,} B" in plain
    assert arrows(text) == []


def test_two_runs_are_two_parts() -> None:
    case = make(batch=1, lengths=(9,), capacity=9, head_dim=4)
    with flow.record() as run:
        for sync in ("lse", "deferred"):
            simulate(case.q, case.k, case.v, **case.arguments, cores=2, sync=sync)
    text = timeline.sequence(run)
    assert re.findall(r"sync (\w+)", text) == ["lse", "deferred"]
    assert len(arrows(text)) == 2 + 6


def test_a_flow_without_cores() -> None:
    with flow.record() as run, flow.step("alone"):
        pass
    for draw in (timeline.sequence, timeline.html):
        with pytest.raises(ArgumentError, match="expected a recorded run on the core model"):
            draw(run)
    with pytest.raises(ArgumentError, match="flow is 3, expected a Flow"):
        timeline.html(3)  # type: ignore[arg-type]


def test_saving(tmp_path: Path) -> None:
    run, _ = recorded()
    timeline.save(run, tmp_path / "run.mmd")
    assert (tmp_path / "run.mmd").read_text() == LOCKSTEP
    timeline.save(Flow.from_json(run.to_json()), tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text() == timeline.html(run)
    with pytest.raises(ArgumentError, match=r"ends in \.html or \.mmd"):
        timeline.save(run, tmp_path / "run.png")
    with pytest.raises(ArgumentError, match="a directory that exists"):
        timeline.save(run, tmp_path / "none" / "run.html")
    assert len(list(tmp_path.iterdir())) == 2


# ---- the page --------------------------------------------------------------------------------------------------------


def boxes(page: Any, selector: str) -> list[dict[str, Any]]:
    return page.eval_on_selector_all(
        selector, "all => all.map(e => ({...e.getBoundingClientRect().toJSON(), text: e.textContent}))"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(open_page: OpenPage, scheme: str) -> None:
    run, found = recorded()
    opened = open_page(timeline.html(run), scheme=scheme)
    page = opened.page
    assert opened.problems == []
    assert len(opened.requests) == 1  # itself
    assert page.locator("h2").inner_text() == "attention_tkg: 2 cores, sequence sharding, sync lockstep"
    assert page.locator("dd").all_inner_texts()[:4] == ["2", "2", "10", f"{sum(m.bytes for m in found.messages):,}"]
    steps, messages = boxes(page, ".step rect"), boxes(page, ".message")
    assert len(messages) == len(found.messages)
    assert len({round(step["x"]) for step in steps}) == 2  # a lane each
    assert page.locator(".message text").first.text_content() == "qk_max_buf, 32 B"
    assert page.locator(".loop-name").all_text_contents() == ["fa_tile_idx 0", "fa_tile_idx 1"]
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light == {"light": "rgb(248, 246, 240)", "dark": "rgb(21, 24, 26)"}[scheme]


def test_what_happens_at_once_stands_in_one_line(open_page: OpenPage) -> None:
    run, _ = recorded(n=3, lengths=(30, 7))
    page = open_page(timeline.html(run), width=1400).page
    by_name: dict[str, list[float]] = {}
    for label in boxes(page, ".step text"):
        by_name.setdefault(label["text"], []).append(label["y"])
    assert len(by_name) == 16
    for name, places in by_name.items():
        assert {places.count(y) for y in places} == ({1} if name == "dma_copy" else {3})
    steps = boxes(page, ".step rect")
    for one in steps:  # nothing lies on anything else
        for other in steps:
            apart = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"] or one["x"] != other["x"]
            assert one is other or apart
    for message in boxes(page, ".message line"):
        inside = [s for s in steps if s["y"] < message["y"] < s["y"] + s["height"] and s["x"] < message["x"] + message["width"]]
        assert not inside


def test_long_runs_are_folded(open_page: OpenPage) -> None:
    run, found = recorded(lengths=(128,), tile=1)
    assert max(found.num_fa_tiles) == 64
    page = open_page(timeline.html(run)).page
    assert page.locator(".loop-name").all_text_contents() == ["fa_tile_idx 0 to 63: 64 equal tiles"]
    assert page.locator("tbody tr").count() == len(found.messages)


def test_names_are_only_text(open_page: OpenPage) -> None:
    evil = "<img src=x onerror=alert(1)></text></svg><script>alert(2)</script>$style\"'&;%%\n#59;"
    steps = [
        Step(0, evil, "attention", attributes={"shard": evil, "sync": evil, "cores": 2}),
        Step(1, evil, "attention", parent=0, attributes={"lane": "core 0", "at": 0, "tile": 0}),
        Step(2, evil, "attention", parent=1, attributes={"lane": "core 0", "at": 0, "tile": 0}),
        Step(3, "sendrecv", "attention", parent=0, attributes={"lane": "core 0", "at": 1, "to": 1, "tag": evil, "bytes": 5}),
        Step(4, "sendrecv", "attention", parent=0, attributes={"lane": evil, "at": 1, "to": 0, "tag": evil, "bytes": 5}),
    ]
    run = Flow(steps)
    opened = open_page(timeline.html(run))
    assert opened.problems == []
    assert opened.page.locator("img, script").count() == 0
    assert str(opened.page.locator(".step text").first.text_content()).startswith("<img src=x")
    for line in timeline.sequence(run).splitlines():
        assert re.match(r"sequenceDiagram$| +(participant c\d as|Note over|loop for fa_tile_idx in range|end$|c\d->>c\d:)", line)
        assert "<" not in line.replace("<br/>", "")


def test_a_number_that_is_none() -> None:
    bad = Flow([Step(0, "x", "attention", attributes={"lane": "core 0", "at": "soon"})])
    with pytest.raises(ArgumentError, match="at of step 0 is 'soon'"):
        timeline.html(bad)


def test_nothing_is_kept_of_tensors() -> None:
    run, _ = recorded()
    assert not any(isinstance(value, torch.Tensor) for step in run.steps for value in step.attributes.values())
