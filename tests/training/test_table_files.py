"""Files of data as tables: what columns are taken for, and what is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lutetia.errors import ArgumentError, DataError
from lutetia.training.columns import names_identifier, number_of
from lutetia.training.data import Samples
from lutetia.training.images import read_pixels
from lutetia.training.intervals import error_bound
from lutetia.training.table_files import is_table, make_table, read_table_file
from lutetia.training.table_run import guess_config, open_table
from lutetia.training.tables import class_order

CSV = "age,city,id,grade\n30,Rome,a1,good\n?,Oslo,a2,bad\n50,Rome,a3,good\n41,,a4,bad\n" + "".join(
    f"{n},Rome,b{n},good\n" for n in range(20)
)


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path


def test_types_are_guessed(csv_file: Path) -> None:
    config, table = guess_config(csv_file, "grade", None)
    assert table.features == ["age", "city"]
    assert table.classes == ["bad", "good"]
    assert table.categories == {1: ["Oslo", "Rome"]}
    assert table.left_out == {"id": "text with 24 different values"}
    assert np.isnan(table.x[1, 0])
    assert np.isnan(table.x[3, 1])
    assert config.data.task == "classification"
    assert dict(table.types)["age"].endswith("1 missing")


def test_what_was_left_out_says_why_also_from_a_config(csv_file: Path) -> None:
    config, _ = guess_config(csv_file, "grade", None)
    table, _ = open_table(replace(config, data=replace(config.data, leave_out=["id", "city"])), Path())
    assert table.left_out == {"id": "text with 24 different values", "city": "as data.leave_out says"}


def test_a_column_of_numbers_but_for_a_cell_says_so(csv_file: Path) -> None:
    csv_file.write_text("a,b\n" + "".join(f"{n},{'xy'[n % 2]}\n" for n in range(9)) + "inf,x\n#N/A,y\n")
    table = guess_config(csv_file, "b", None)[1]
    assert dict(table.types)["a"] == "10 categories, because 'inf' is not a number, 1 missing"


def test_a_number_of_many_values_is_a_regression_unless_told(csv_file: Path) -> None:
    csv_file.write_text("a,b\n" + "".join(f"{n},{n * 2}\n" for n in range(40)))
    assert guess_config(csv_file, "b", None)[1].classes == []
    assert len(guess_config(csv_file, "b", "classification")[1].classes) == 40
    assert guess_config(csv_file, None, None)[0].data.target == "b"
    with pytest.raises(ArgumentError, match="task"):
        guess_config(csv_file, "b", "clustering")


@pytest.mark.parametrize("mark", [";", "|"])
def test_bars_stand_between_cells_and_lines_may_end_with_a_delimiter(csv_file: Path, mark: str) -> None:
    rows = [["a", "b", "y", "", ""], *([f"{2 * n},5", "xyz"[n % 3], "pq"[n % 2], "", ""] for n in range(30))]
    csv_file.write_text("\n".join(map(mark.join, rows)))
    table = guess_config(csv_file, None, None)[1]
    assert (table.features, table.classes, table.left_out) == (["a", "b"], ["p", "q"], {})
    assert table.x[3, 0] == 6.5
    csv_file.write_text("\n".join(mark.join([*row[:3], "!" * (at == 9)]) for at, row in enumerate(rows)))
    assert "column 3" in read_table_file(csv_file).columns


def test_whole_numbers_that_rows_do_not_share_are_no_classes(csv_file: Path) -> None:
    for values, n_classes in (([n % 15 for n in range(24)], 0), ([*range(6)], 0), ([*range(5)], 5), ([0, 1, 1], 2)):
        csv_file.write_text("a,b\n" + "".join(f"{n % 4 + n / 7},{value}\n" for n, value in enumerate(values)))
        assert len(guess_config(csv_file, "b", None)[1].classes) == n_classes
    csv_file.write_text("a,b\n" + "".join(f"{n % 9},{n % 20}\n" for n in range(40)))
    assert len(guess_config(csv_file, "b", None)[1].classes) == 20


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1,234.5", 1234.5), ("-$1,000", -1000.0), ("12.5%", 12.5), ("7 %", 7.0), ("1.234,5 €", 1234.5), ("€3", 3.0),
        ("1e3", 1000.0), ("1,23", None), ("12,34,567", None), ("%", None), ("inf", None), ("1" * 400, None), ("v2", None),
        ("1,000" + ",000" * 200, None),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(cell: str, number: float | None) -> None:
    assert number_of(cell) == number


def test_columns_that_teach_nothing_are_left_out(csv_file: Path) -> None:
    rows = (
        f'{n + 5},{n},7,2024-0{n % 3 + 1}-11,{"3 to 5" if n == 3 else n * 1.5},{n % 7}%,"{n % 4 + 1},000",{"xy"[n % 2]}\n'
        for n in range(40)
    )
    csv_file.write_text(",row,c,day,odd,part,price,y\n" + "".join(rows))
    config, table = guess_config(csv_file, "y", None)
    assert table.left_out == {
        "column 0": "it numbers the rows",
        "row": "it numbers the rows",
        "c": "all its values are 7",
        "odd": "'3 to 5' is not a number, and it has 40 different values",
    }
    assert table.features == ["day", "part", "price"]
    assert config.data.dates == ["day"]
    assert table.x[39].tolist() == [datetime(2024, 1, 11, tzinfo=UTC).timestamp(), 39 % 7, 4000.0]
    kept = [each for each in config.data.leave_out if each != "row"]
    assert open_table(replace(config, data=replace(config.data, leave_out=kept)), Path())[0].features[0] == "row"
    csv_file.write_text("t,y\n" + "".join(f"{n},{n * n}\n" for n in range(40)))  # all there is to learn from
    assert guess_config(csv_file, "y", None)[1].features == ["t"]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("id", True), ("ID", True), ("customer_id", True), ("PassengerId", True), ("userID", True), ("Customer ID", True),
        ("rownames", True), ("Unnamed: 0", True),
        ("order.uuid", True), ("orderid", True), ("key", True), ("product key", True), ("order_number", True),
        ("Invoice No.", True), ("serialNumber", True),
        ("price", False), ("paid", False), ("bid", False), ("humid", False), ("grid", False), ("id price", False),
        ("number", False), ("atomic_number", False), ("passenger number", False), ("number of orders", False), ("keys", False),
        ("musical key", False), ("order", False), ("", False), ("№", False), ("ID3", False),
    ],
)  # fmt: skip
def test_names_of_identifiers(name: str, is_one: bool) -> None:
    assert names_identifier(name) == is_one


def test_identifiers_are_left_out_and_prices_are_not(csv_file: Path) -> None:
    """Both are different whole numbers in each row; only the name tells them apart."""
    values = np.random.default_rng(0).permutation(9000)[:60] + 1000
    csv_file.write_text("customer_id,price,size,y\n" + "".join(f"{n},{n},{n % 7},{'xy'[n % 2]}\n" for n in values))
    config, table = guess_config(csv_file, "y", None)
    assert table.left_out == {"customer_id": "an identifier, with another number in each row"}
    assert table.features == ["price", "size"]
    assert open_table(config, Path())[0].left_out == table.left_out
    assert open_table(replace(config, data=replace(config.data, leave_out=[])), Path())[0].features[0] == "customer_id"


@pytest.mark.parametrize(
    "cell",
    [lambda n: n // 2 * 7, lambda n: n * 1.5, lambda n: "" if n == 9 else n * 7 % 61],
)  # customers that come twice, measurements, and cells without a value
def test_a_column_that_does_not_identify_rows_is_used_whatever_its_name(csv_file: Path, cell: Callable[[int], object]) -> None:
    csv_file.write_text("customer_id,size,y\n" + "".join(f"{cell(n)},{n % 7},{'xy'[n % 2]}\n" for n in range(60)))
    assert guess_config(csv_file, "y", None)[1].left_out == {}


def test_few_rows_do_not_make_an_identifier(csv_file: Path) -> None:
    csv_file.write_text("id,size,y\n" + "".join(f"{n * 7 % 23},{n % 7},{'xy'[n % 2]}\n" for n in range(20)))
    assert guess_config(csv_file, "y", None)[1].features == ["id", "size"]
    csv_file.write_text("id,y\n" + "".join(f"{n * 7 % 61},{n * n}\n" for n in range(60)))  # all there is to learn from
    assert guess_config(csv_file, "y", None)[1].features == ["id"]


@pytest.mark.parametrize(
    "names",
    [
        ["type 0", "type 1", "type 2", "type 10", "type 10 b", "type 11"],
        ["-3", "0", "2", "10", "1a", "a", "a1", "a2b3", "a2b20", "a10b1"],
        ["v1.2", "v1.10", "v2"],
        ["x01", "x1", "x002", "x2", "x3"],
        ["1" * 5000, "n" + "9" * 4999, "n" + "1" * 5000],
    ],
)
def test_classes_are_listed_in_natural_order(names: list[str]) -> None:
    for seed in range(3):
        shuffled = [names[at] for at in np.random.default_rng(seed).permutation(len(names))]
        assert sorted(shuffled, key=class_order) == names


def test_a_target_of_numbers_with_a_word_is_not_taken_for_classes(csv_file: Path) -> None:
    csv_file.write_text("a,price\n" + "".join(f"{n % 7},{'Unknown' if n == 5 else n * 1.5}\n" for n in range(40)))
    with pytest.raises(DataError, match="has 'unknown' in line 7 and numbers elsewhere: remove such rows, or use --task classif"):
        guess_config(csv_file, "price", None)
    assert len(guess_config(csv_file, "price", "classification")[1].classes) == 40


def test_many_categories_are_kept_where_the_config_says_so(csv_file: Path) -> None:
    csv_file.write_text("zip,a,y\n" + "".join(f"Z{n % 1100},{n % 7},{'xy'[n % 2]}\n" for n in range(1300)))
    config, table = guess_config(csv_file, "y", None)
    assert table.left_out == {"zip": "text with 1,100 different values"}
    kept = replace(config.data, categorical=["zip"], leave_out=[])
    table, _ = open_table(replace(config, data=kept), Path())
    assert table.features == ["zip", "a"]
    assert len(table.categories[0]) == 1100


def test_a_few_words_in_a_column_of_numbers_are_missing_values(csv_file: Path) -> None:
    words = {4: "-", 8: "Unknown", 12: "n/a"}
    rows = (f"{words.get(n, n * 1.5)},{'unknown' if n % 9 == 0 else 'ham'},{'xy'[n % 2]}\n" for n in range(60))
    csv_file.write_text("a,dish,y\n" + "".join(rows))
    config, table = guess_config(csv_file, "y", None)
    assert config.data.missing == ["-", "unknown"]
    assert table.types == [("a", "number, 57 values, 3 missing"), ("dish", "1 category, 7 missing")]
    assert np.flatnonzero(np.isnan(table.x[:, 0])).tolist() == [4, 8, 12]
    again = open_table(config, Path())[0]  # the config says it, so a later fit does not guess
    assert np.array_equal(again.x, table.x, equal_nan=True)
    told = open_table(replace(config, data=replace(config.data, missing=["Unknown"])), Path())[0]
    assert told.left_out == {"a": "'-' is not a number, and it has 58 different values"}


@pytest.mark.parametrize(
    "cell",
    [
        lambda n: "abcdef"[n % 6] if n < 6 else n,  # six words
        lambda n: "-" if n % 9 == 0 else n,  # in more than a tenth of the cells
        lambda n: "100+" if n == 7 else n,  # a number in other words
        lambda n: "-" if n == 7 else n % 20,  # few values: categories
        lambda n: n,
    ],
)
def test_other_words_are_values(csv_file: Path, cell: Callable[[int], object]) -> None:
    csv_file.write_text("a,b,y\n" + "".join(f"{cell(n)},{n % 7},{'xy'[n % 2]}\n" for n in range(100)))
    assert guess_config(csv_file, "y", None)[0].data.missing == []


@pytest.mark.parametrize(("n", "place"), [(9, 9), (10, 10), (19, 18), (99, 90), (240, 217)])
def test_the_bound_of_errors(n: int, place: int) -> None:
    """With n errors of rows like it, a new one is among the first k of n + 1 with the chance k / (n + 1)."""
    errors = np.random.default_rng(n).permutation(np.arange(1.0, n + 1))
    assert error_bound(errors) == place
    assert place / (n + 1) >= 0.9 > (place - 1) / (n + 1)
    assert error_bound(errors[:8]) is None


def test_a_class_that_is_rare_is_among_the_rows_to_fit(csv_file: Path) -> None:
    for place in range(60):
        csv_file.write_text("a,y\n" + "".join(f"{n % 9},{'rare' if n == place else 'common'}\n" for n in range(60)))
        _, data = open_table(guess_config(csv_file, "y", None)[0], Path())
        train, test = data.splits["train"], data.splits["test"]
        assert isinstance(train, Samples)
        assert isinstance(test, Samples)
        assert 1 in train.y
        assert len(train.y) + len(test.y) == 60
        assert len(test.y) in (11, 12)


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        ("a,b\n1,x\n2,\n", "b", "line 3"),
        ("a,b\n", "b", "column names and no rows below them"),
        ("a,b\n1,x\n2,x\n", "b", "one class"),
        ("a,b\n1,x\n2,y\n", "c", "no column 'c'"),
        ("a\n1\n2\n", "a", "one column"),
        ("a,a,b\n1,2,x\n3,4,y\n", "b", "two columns"),
        ("a:b\n1:x\n2:y\n", "b", "commas, semicolons, tabs or . between the cells"),
        ("a,b\n" + "".join(f"{n},name {n}\n" for n in range(21)), "b", "21 classes in 21 rows, such as 'name 0'"),
        ("a,b\n" + "".join(f"{n},name {n % 16}\n" for n in range(30)), "b", "16 classes in 30 rows"),
        ("a,b\n1,0.5\n3,-1e39\n", "b", "line 3: -1e39 is too large for a 32-bit float"),
    ],
)
def test_files_that_cannot_be(csv_file: Path, text: str, target: str, message: str) -> None:
    csv_file.write_text(text)
    with pytest.raises(DataError, match=message):
        guess_config(csv_file, target, None)


def test_parquet_says_what_csv_says(csv_file: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(csv_file, na_values="?").to_parquet(tmp_path / "people.parquet")
    a, b = (make_table(read_table_file(tmp_path / f"people.{kind}"), "grade", None) for kind in ("csv", "parquet"))
    np.testing.assert_array_equal(a.x, b.x)
    assert (a.features, a.classes, a.categories) == (b.features, b.classes, b.categories)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="parquet"):
        read_table_file(tmp_path / "bad.parquet")


def test_arrays_and_images_keep_their_shape(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(6, 4, 5)).astype(np.uint8)
    np.savez(tmp_path / "x.npz", x=pixels, y=np.array(list("ababab")))
    for number, each in enumerate(pixels):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(each).save(folder / f"{number}.png")
    arrays, images = (make_table(read_table_file(tmp_path / name), None, None) for name in ("x.npz", "images"))
    assert arrays.input_shape == images.input_shape == (4, 5)
    assert arrays.classes == images.classes == ["a", "b"]
    np.testing.assert_array_equal(arrays.x, pixels.reshape(6, -1) / 255)
    np.testing.assert_array_equal(images.x, np.concatenate([pixels[::2], pixels[1::2]]).reshape(6, -1) / 255)
    Image.fromarray(pixels[0, :3]).save(tmp_path / "images" / "a" / "odd.png")
    with pytest.raises(DataError, match="3 × 5 pixels, expected 4 × 5"):
        read_table_file(tmp_path / "images")


def make_images(folder: Path, pixels: Callable[[int, int], np.ndarray], sizes: list[tuple[int, int]]) -> Path:
    """Two classes of images, of these sizes (height, width) in turn, and of what `pixels` gives for each."""
    for number, (height, width) in enumerate(sizes):
        inside = folder / "ab"[number % 2]
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(height, width)).save(inside / f"{number}.png")
    return folder


def test_images_of_several_sizes_are_made_alike(tmp_path: Path) -> None:
    def grey(height: int, width: int) -> np.ndarray:
        return np.full((height, width), 100, np.uint8)

    folder = make_images(tmp_path / "small", grey, [(8, 6), (10, 6), (12, 6), (9, 7)])
    config, table = guess_config(folder, None, None)
    assert config.data.size == (10, 6)  # the medians, rounded to even
    assert config.data.colour is False
    assert table.input_shape == (10, 6)
    assert np.unique(table.x).tolist() == [100 / 255]
    assert guess_config(make_images(tmp_path / "large", grey, [(400, 200), (400, 198)]), None, None)[0].data.size == (32, 16)
    alike = guess_config(make_images(tmp_path / "alike", grey, [(40, 50), (40, 50)]), None, None)
    assert alike[0].data.size is None
    assert alike[1].input_shape == (40, 50)
    resized = open_table(replace(config, data=replace(config.data, size=(3, 4))), Path())[0]
    assert resized.input_shape == (3, 4)
    with pytest.raises(DataError, match=r"data.size = \[height, width\] resizes all of them"):
        open_table(replace(config, data=replace(config.data, size=None)), Path())


def test_images_with_colours_keep_them(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    folder = make_images(tmp_path / "colour", lambda h, w: random.integers(256, size=(h, w, 3)).astype(np.uint8), [(4, 5)] * 4)
    config, table = guess_config(folder, None, None)
    assert config.data.colour is True
    assert table.input_shape == (3, 4, 5)
    first = np.asarray(Image.open(folder / "a" / "0.png"))
    np.testing.assert_array_equal(table.x[0].reshape(3, 4, 5), np.moveaxis(first, -1, 0) / 255)
    grey = open_table(replace(config, data=replace(config.data, colour=False)), Path())[0]
    assert grey.input_shape == (4, 5)
    alike = random.integers(256, size=(4, 5, 1)).astype(np.uint8).repeat(3, 2)  # grey in three channels
    assert guess_config(make_images(tmp_path / "grey", lambda h, w: alike, [(4, 5)] * 2), None, None)[0].data.colour is False


def test_images_of_16_bits_and_with_transparency(tmp_path: Path) -> None:
    deep = np.array([[0, 256, 40000], [65535, 20000, 255]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    size: list[tuple[int, int]] = []
    pixels = read_pixels(tmp_path / "deep.png", "L", lambda width, height: size.append((width, height)))
    assert pixels.tolist() == (deep // 256).tolist()
    assert size == [(3, 2)]
    ink = np.zeros((2, 3, 4), np.uint8)  # black, where there is ink at all
    ink[0, 1, 3] = 255
    ink[1, 2] = (0, 0, 0, 128)
    Image.fromarray(ink, "RGBA").save(tmp_path / "ink.png")
    drawn = read_pixels(tmp_path / "ink.png", "L", lambda width, height: None)
    assert drawn.tolist() == [[255, 0, 255], [255, 255, 127]]
    Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(DataError, match="has pixels of 32 bits, expected 8 or 16"):
        read_pixels(tmp_path / "float.tiff", "L", lambda width, height: None)


def test_only_plain_formats_of_images_are_opened(tmp_path: Path) -> None:
    """Whatever a file is called: pillow runs Ghostscript for PostScript, and waits at a pipe."""
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    image = folder / "0.png"
    image.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n%%EndComments\n(" + b" " * 100 + b") show\n%%EOF\n")
    with pytest.raises(DataError, match="cannot identify image file"):
        read_table_file(tmp_path / "images")
    image.unlink()
    os.mkfifo(image)
    with pytest.raises(DataError, match="is a device, a pipe or a socket, expected an image"):
        read_table_file(tmp_path / "images")
    image.unlink()
    Image.new("L", (8000, 8000)).save(image)  # 512 MB of numbers in a file of 70 KB
    with pytest.raises(DataError, match="more than 100 times as many"):
        read_table_file(tmp_path / "images")


def test_names_of_arrays_are_those_of_their_numbers(tmp_path: Path) -> None:
    path, x, y = tmp_path / "x.npz", np.zeros((3, 2)), np.array([0, 1, 2])
    for words in (np.array(["a", "b"]), np.array("abc")):
        np.savez(path, x=x, y=y, target_names=words)
        with pytest.raises(DataError, match="class names and other numbers in y"):
            read_table_file(path)
    np.savez(path, x=x, y=np.array([0, -1, 1]), target_names=np.array(["a", "b"]))  # -1 was the last name
    with pytest.raises(DataError, match="2 class names"):
        read_table_file(path)
    np.savez(path, x=x, y=y, feature_names=np.array(["a", "a"]))
    with pytest.raises(DataError, match="two columns named 'a'"):
        read_table_file(path)


def test_a_name_that_a_wide_table_has_twice_is_found_at_once(tmp_path: Path) -> None:
    path, names = tmp_path / "x.csv", [f"a{number}" for number in range(100_000)]
    path.write_text("\n".join([",".join([*names, "a7"]), ",".join(["1"] * 100_001)]))
    begun = time.process_time()
    with pytest.raises(DataError, match="two columns named 'a7'"):
        read_table_file(path)
    assert time.process_time() - begun < 20  # a minute where every name was looked for among those before it


def test_a_small_parquet_file_does_not_fill_the_memory(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet, path = pytest.importorskip("pyarrow.parquet"), tmp_path / "x.parquet"
    long = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(10_000, np.int8)), ["x" * 100_000])  # a gigabyte of text
    parquet.write_table(pyarrow.table({"a": long, "b": np.arange(10_000)}), path)
    column = read_table_file(path).columns["a"]
    assert len(column) == 10_000
    assert column[0] is column[-1]
    parquet.write_table(pyarrow.table({"a": np.zeros(20_000_000, np.int8)}), path)
    with pytest.raises(DataError, match="more than 100 times as many"):
        read_table_file(path)
    parquet.write_table(pyarrow.table({"a": [[1], [2]], "b": [1, 2]}), path)
    with pytest.raises(DataError, match=r"column 'a' holds list<.*>, expected numbers or text"):
        read_table_file(path)


def test_names_tell_data_from_configs(tmp_path: Path) -> None:
    assert is_table(Path("a.csv"))
    assert is_table(Path("a.csv.gz"))
    assert is_table(tmp_path)
    assert not is_table(Path("a.toml"))
    with pytest.raises(DataError, match="does not exist"):
        read_table_file(tmp_path / "none.xlsx")
