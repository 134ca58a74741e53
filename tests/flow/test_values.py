"""Which step each value came from, whatever kind of tensor it is, and that nothing is held alive."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef

from lutetia import flow
from lutetia.flow.values import REMEMBERED, Memory, look, overlap


def run_step(name: str, inputs: Mapping[str, Any] | None = None, /, **outputs: Any) -> None:
    with flow.step(name, inputs=inputs) as step:
        step.outputs(**outputs)


def links(run: flow.Flow) -> list[tuple[str, str, str, str, str]]:
    steps = run.steps
    return [(steps[e.source].name, e.output, steps[e.target].name, e.input, e.kind) for e in run.edges]


# Which value came from where


def test_views_keep_the_link() -> None:
    x = torch.zeros(6, 4)
    with flow.record() as run:
        run_step("make", x=x)
        run_step("view", {"a": x.view(24), "b": x.T, "c": x[2:, 1], "d": x.detach(), "e": x.view(torch.int32)})
        run_step("copy", {"a": x.clone(), "b": x + 0})
    assert [link[3] for link in links(run)] == ["a", "b", "c", "d", "e"]
    assert {tensor.value for tensor in run.steps[1].inputs} == {run.steps[0].outputs[0].value}
    assert {tensor.producer for tensor in run.steps[1].inputs} == {0}
    assert [tensor.producer for tensor in run.steps[2].inputs] == [None, None]


def test_an_update_in_place_makes_a_new_value() -> None:
    x = torch.zeros(4)
    with flow.record() as run:
        run_step("make", x=x)
        run_step("read", {"x": x})
        run_step("update", {"state": x}, state=x)
        run_step("use", {"x": x})
    assert links(run) == [
        ("make", "x", "read", "x", "data"),
        ("make", "x", "update", "state", "in_place"),
        ("update", "state", "use", "x", "data"),
    ]
    make, read, update, use = run.steps
    assert make.outputs[0].value == read.inputs[0].value == update.inputs[0].value
    assert make.outputs[0].value != update.outputs[0].value == use.inputs[0].value
    assert use.inputs[0].producer == 2


def test_only_what_was_overwritten_is_in_place() -> None:
    x = torch.zeros(10)
    with flow.record() as run:
        run_step("left", x=x[:5])
        run_step("right", x=x[5:])
        run_step("update", {"x": x}, y=x[:5])
        run_step("fill", x=x)
        run_step("beside", {"x": x[:5]}, y=x[5:])
    assert [(link[0], link[2], link[4]) for link in links(run)] == [
        ("left", "update", "in_place"),
        ("right", "update", "data"),
        ("fill", "beside", "data"),
    ]


def test_columns_written_again_hide_what_was_there() -> None:
    x = torch.zeros(4, 6)
    with flow.record() as run:
        run_step("first", x=x[:, :2])
        run_step("second", x=x[:, :2])
        run_step("read", {"x": x})
    assert [(link[0], link[2]) for link in links(run)] == [("second", "read")]


def test_tensors_without_elements_are_linked() -> None:
    x = torch.zeros(0, 3)
    with flow.record() as run:
        run_step("make", x=x)
        run_step("use", {"x": x.T, "other": torch.zeros(0, 3)})
    assert [link[3] for link in links(run)] == ["x"]


def test_an_outside_value_has_one_number_until_it_is_overwritten() -> None:
    x = torch.zeros(4, 4)
    with flow.record() as run:
        run_step("a", {"row": x[1], "whole": x, "other": torch.zeros(4, 4), "last": x[3]})
        run_step("b", {"w": x}, w=x)
        run_step("c", {"row": x[2]})
    row, whole, other, last = run.steps[0].inputs
    assert row.value == whole.value == last.value == run.steps[1].inputs[0].value != other.value
    assert row.producer is None
    assert run.steps[1].outputs[0].value == run.steps[2].inputs[0].value != row.value


def test_packed_tensors_are_values_of_their_own() -> None:
    q, k, v = torch.zeros(5, 12).chunk(3, dim=1)
    cache = torch.zeros(2, 3, 7, 4)  # batch, heads, positions, width
    with flow.record() as run:
        run_step("attend", {"q": q, "k": k, "v": v})
        for head in (1, 0, 2):
            run_step(f"head{head}", part=cache[:, head])
        run_step("one", {"part": cache[:, 1]})
        run_step("all", {"cache": cache})
        run_step("row", {"row": cache[1, 2]})
    assert len({tensor.value for tensor in run.steps[0].inputs}) == 3
    assert [(link[0], link[2]) for link in links(run)] == [
        ("head1", "one"),
        ("head1", "all"),
        ("head0", "all"),
        ("head2", "all"),
        ("head2", "row"),
    ]


def test_an_outer_step_passes_on_what_an_inner_one_made() -> None:
    x = torch.zeros(4)
    with flow.record() as run:
        with flow.step("outer", inputs={"x": x}) as outer:
            with flow.step("inner", inputs={"x": x}) as inner:
                y = torch.zeros(4)
                inner.outputs(y=y)
            extra = torch.zeros(10)
            run_step("half", half=extra[:5])
            outer.outputs(result=y, extra=extra)
        run_step("use", {"y": y})
        run_step("use_half", {"half": extra[:5]})
        run_step("use_rest", {"rest": extra[5:]})
    result, whole = run.steps[0].outputs
    assert (result.value, result.producer) == (run.steps[1].outputs[0].value, 1)
    assert whole.producer == 2
    assert [link[:4] for link in links(run)] == [
        ("inner", "y", "use", "y"),
        ("half", "half", "use_half", "half"),
        ("outer", "extra", "use_rest", "rest"),  # the inner step did not write that part
    ]


def test_a_step_may_read_what_its_outer_step_has_made() -> None:
    x = torch.zeros(4)
    with flow.record() as run, flow.step("outer") as outer:
        outer.outputs(x=x)
        run_step("inner", {"x": x})
    assert links(run) == [("outer", "x", "inner", "x", "data")]


slices = st.tuples(st.integers(0, 29), st.integers(1, 30)).map(lambda p: (p[0], min(30, p[0] + p[1])))


@settings(max_examples=150)
@given(st.lists(st.tuples(st.booleans(), slices), max_size=14))
def test_producers_of_slices_are_the_last_writers_of_their_bytes(actions: list[tuple[bool, tuple[int, int]]]) -> None:
    buffer, last = torch.zeros(30, dtype=torch.int16), [-1] * 30
    with flow.record() as run:
        for number, (write, (low, high)) in enumerate(actions):
            if not write:
                run_step("read", {"x": buffer[low:high]})
                expected = set(last[low:high]) - {-1}
                assert {edge.source for edge in run.edges if edge.target == number} == expected
                assert run.steps[-1].inputs[0].producer == (max(expected) if expected else None)
            else:
                run_step("write", x=buffer[low:high])
                last[low:high] = [number] * (high - low)


@st.composite
def strided_views(draw: st.DrawFn) -> torch.Tensor:
    sizes = draw(st.lists(st.integers(0, 4), min_size=0, max_size=3))
    strides = draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)))
    return torch.arange(100).as_strided(sizes, strides, draw(st.integers(0, 15)))


@settings(max_examples=150)
@given(st.lists(st.tuples(st.booleans(), strided_views()), max_size=10))
def test_no_producer_of_a_strided_view_is_missed(actions: list[tuple[bool, torch.Tensor]]) -> None:
    buffer, last = torch.arange(100), [-1] * 100
    with flow.record() as run:
        for number, (write, like) in enumerate(actions):
            view = buffer.as_strided(like.shape, like.stride(), like.storage_offset())
            places = set(view.flatten().tolist())  # the buffer counts, so a view's elements are its places
            if not write:
                run_step("read", {"x": view})
                assert {edge.source for edge in run.edges if edge.target == number} >= {last[place] for place in places} - {-1}
            else:
                run_step("write", x=view)
                for place in places:
                    last[place] = number


@settings(max_examples=300)
@given(strided_views(), strided_views())
def test_views_said_to_be_apart_are_apart(a: torch.Tensor, b: torch.Tensor) -> None:
    b = a.as_strided(b.shape, b.stride(), b.storage_offset())  # of one storage
    shared = set(a.flatten().tolist()) & set(b.flatten().tolist())
    seen_a, seen_b = look({"a": a, "b": b})
    if not overlap(seen_a.pieces[0], seen_b.pieces[0]):
        assert not shared


@settings(max_examples=100)
@given(slices, slices, slices)
def test_columns_of_a_matrix_are_told_apart(rows: tuple[int, int], columns: tuple[int, int], others: tuple[int, int]) -> None:
    matrix = torch.zeros(30, 30)
    (top, bottom), (left, right), (other_left, other_right) = rows, columns, others
    a, b = look({"a": matrix[top:bottom, left:right], "b": matrix[:, other_left:other_right]})
    assert overlap(a.pieces[0], b.pieces[0]) == (left < other_right and other_left < right)


def test_a_buffer_filled_slice_by_slice_keeps_its_latest_writers() -> None:
    buffer, count = torch.zeros(1000), 1000
    with flow.record() as run:
        for index in range(count):
            run_step("append", x=buffer[index : index + 1])
        run_step("read", {"x": buffer})
    assert {edge.source for edge in run.edges} == set(range(count - REMEMBERED, count))


# Nothing is held alive, and memory that is used again is not mistaken


def test_no_tensor_is_held() -> None:
    class Watched(np.ndarray):
        pass

    def watched() -> tuple[torch.Tensor, list[Any]]:
        array = np.zeros(1000, dtype=np.float32).view(Watched)
        tensor = torch.from_numpy(array)
        storage = StorageWeakRef(tensor.untyped_storage())
        return tensor, [weakref.ref(tensor), weakref.ref(array), lambda: None if storage.expired() else storage]

    with flow.record() as run:
        x, x_alive = watched()
        with flow.step("a", inputs={"x": x, "xs": [x[1:]]}, noted=x) as step:
            y, y_alive = watched()
            step.outputs(y=y)
            del x
            assert [alive() for alive in x_alive] == [None] * 3  # within the step
            z, z_alive = watched()
            step.outputs(z=z)
        del y
        assert [alive() for alive in y_alive] == [None] * 3  # within the recording
    del z
    assert [alive() for alive in z_alive] == [None] * 3  # after it
    assert len(run) == 1
    assert all(alive() is None for alive in (*x_alive, *y_alive, *z_alive))


def test_memory_used_again_is_not_mistaken() -> None:
    seen: set[int] = set()
    reused = 0
    with flow.record() as run:
        for _ in range(200):
            x = torch.zeros(1024)
            reused += x.data_ptr() in seen
            seen.add(x.data_ptr())
            run_step("read", {"x": x})
            run_step("write", x=x)
            del x
    assert reused > 0  # else this shows nothing
    assert run.edges == []
    values = [tensor.value for step in run.steps for tensor in (*step.inputs, *step.outputs)]
    assert len(set(values)) == len(values)


def test_forgotten_storages_are_dropped() -> None:
    memory = Memory()
    kept, buffer = [torch.zeros(1) for _ in range(10)], torch.zeros(3000)
    for index in range(3000):
        tensor = kept[index] if index < len(kept) else torch.zeros(1)
        memory.write(look({"x": tensor})[0].pieces, index, "x")
        memory.outside(look({"x": torch.zeros(1)})[0].pieces)
        memory.outside(look({"x": buffer[index:]})[0].pieces)
    assert len(memory._writes) <= 1024
    assert len(memory._outside) <= 1024
    assert max(map(len, memory._outside.values())) <= REMEMBERED
    assert [memory.writers(look({"x": tensor})[0].pieces)[0].step for tensor in kept] == list(range(10))


# Whatever may be given as a tensor


def test_lists_are_opened_and_the_rest_is_left_out() -> None:
    a, b = torch.zeros(1), torch.zeros(2)
    things = {"xs": [a, None, (b, 3)], "named": {"k": a}, "none": None, "n": 3, "f": 0.5, "s": "x", "array": np.zeros((2, 3))}
    with flow.record() as run:
        run_step("make", b=b)
        run_step("use", things, **things)
    assert [(t.name, t.shape) for t in run.steps[1].inputs] == [
        ("xs.0", (1,)),
        ("xs.2.0", (2,)),
        ("named.k", (1,)),
        ("array", (2, 3)),
    ]
    assert (run.edges[0].source, run.edges[0].input) == (0, "xs.2.0")
    assert run.steps[1].inputs[3].dtype == "float64"


def test_arrays_are_values_too() -> None:
    array, tensor = np.zeros((6, 4), dtype=np.int16), torch.zeros(6, 4)
    with flow.record() as run:
        run_step("make", array=array[2:], tensor=tensor)
        run_step("use", {"apart": array[:2], "part": array[3:, ::-1], "shared": tensor.numpy()[1:], "copy": array.copy()})
    assert [(link[1], link[3]) for link in links(run)] == [("array", "part"), ("tensor", "shared")]
    assert run.steps[0].outputs[0].bytes == 32


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_their_indices_and_values(layout: torch.layout) -> None:
    x = torch.eye(5).to_sparse(layout=layout)
    with flow.record() as run:
        run_step("make", x=x)
        run_step("values", {"v": x.values() if layout is not torch.sparse_coo else x._values()})
        run_step("whole", {"x": x})
        run_step("other", {"x": torch.eye(5).to_sparse(layout=layout)})
    assert [(e.source, e.target) for e in run.edges] == [(0, 1), (0, 2)]
    pointers = {torch.sparse_coo: 2 * 5, torch.sparse_csr: 5 + 6, torch.sparse_csc: 5 + 6}[layout]
    assert run.steps[0].outputs[0].shape == (5, 5)
    assert run.steps[0].outputs[0].bytes == 8 * pointers + 4 * 5


def test_meta_and_fake_tensors() -> None:
    with FakeTensorMode():
        fake = torch.empty(3, 4)
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    symbolic = mode.from_tensor(torch.zeros(7, 5), static_shapes=False)
    unbacked = environment.create_unbacked_symint()
    with mode:
        unknown = torch.empty(unbacked, 2)
    meta = torch.empty(3, 4, device="meta")
    tensors = {"meta": meta, "fake": fake, "symbolic": symbolic, "unknown": unknown}
    with flow.record() as run:
        run_step("make", **tensors)
        run_step("use", {**tensors, "view": meta[1:]})
        run_step("mixed", {"cpu": torch.zeros(1)}, meta=torch.empty(1, device="meta"))
    assert [tensor.shape for tensor in run.steps[0].outputs] == [(3, 4), (3, 4), (7, 5), (-1, 2)]
    assert run.steps[0].device == "meta"
    assert run.steps[2].device == "meta"
    assert [link[3] for link in links(run)] == ["meta", "fake", "symbolic", "unknown", "view"]
    assert not environment.guards  # looking at a size must not fix it


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_a_plain_storage() -> None:
    with flow.record() as run:
        for name, transform in (("vmap", torch.vmap), ("grad", torch.func.grad), ("functional", torch.func.functionalize)):

            def seen(x: torch.Tensor, name: str = name) -> torch.Tensor:
                run_step(name, {"x": x}, y=x)
                return x.sum()

            transform(seen)(torch.zeros(3, 4) if name == "vmap" else torch.zeros(3))
        for layout in (torch.strided, torch.jagged):
            nested = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)], layout=layout)
            run_step("nested", {"x": nested}, y=nested)
        run_step("mkldnn", {"x": torch.zeros(3, 3).to_mkldnn()})
    assert [step.name for step in run.steps] == ["vmap", "grad", "functional", "nested", "nested", "mkldnn"]
    assert [step.inputs[0].shape for step in run.steps[:3]] == [(4,), (3,), (3,)]


def test_tensor_subclasses_are_not_asked() -> None:
    class Silent(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a recorder must not run code of the tensors it sees")

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, shape: tuple[int, ...]) -> Wrapper:
            return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

        @classmethod
        def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a recorder must not run code of the tensors it sees")

    silent, wrapper = torch.zeros(3).as_subclass(Silent), Wrapper((2, 5))
    with flow.record() as run:
        run_step("make", silent=silent, wrapper=wrapper, parameter=torch.nn.Parameter(torch.zeros(1)))
        run_step("use", {"silent": silent, "wrapper": wrapper})
    assert [tensor.shape for tensor in run.steps[0].outputs] == [(3,), (2, 5), (1,)]
    assert len(run.edges) == 2


def test_names_can_always_be_written() -> None:
    with flow.record() as run:
        run_step("file\udce9", {"a\udce9": [torch.zeros(1)]})
    assert run.steps[0].name == "file\\udce9"
    assert run.steps[0].inputs[0].name == "a\\udce9.0"
