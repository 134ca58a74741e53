"""Images that are fitted where they are and shifted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lutetia.cli.build_data import fit_settings
from lutetia.errors import ArgumentError, DataError
from lutetia.models import load
from lutetia.training.boosting import Boosting
from lutetia.training.goals import Classes
from lutetia.training.shifts import moved, moves
from lutetia.training.table_refit import refit_tables
from lutetia.training.table_run import TableConfig, TableSettings, guess_config, make_table_config, train_table
from lutetia.training.tabular import Shape, TabularRows, encode_rows, fit_tabular, learning_codes

FEW = Boosting(n_tables=60, n_anchors=3)


@pytest.mark.parametrize(("reach", "count"), [(0, 1), (1, 5), (2, 13), (3, 25)])
def test_moves_are_all_in_reach(reach: int, count: int) -> None:
    found = moves(reach)
    assert (found[0], len(found), len(set(found))) == ((0, 0), count, count)
    assert {abs(down) + abs(right) for down, right in found} == set(range(reach + 1))


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 6), (1, 1)])
def test_a_moved_image_has_each_pixel_elsewhere_and_repeats_its_border(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random((4, *shape))
    height, width = shape[-2:]
    for down, right in moves(2):
        found = moved(x.reshape(4, -1), shape, (down, right)).reshape(x.shape)
        for row in range(height):
            for column in range(width):
                source = min(max(row - down, 0), height - 1), min(max(column - right, 0), width - 1)
                assert (found[..., row, column] == x[..., source[0], source[1]]).all()


def dots(moved_by: int = 0) -> TabularRows:
    """Images of 9 × 9 pixels with a dot at one of two places, or to the right of it."""
    y = np.arange(60) % 2
    x = np.random.default_rng(1).random((60, 9, 9)) * 0.1
    x[np.arange(60), 4, np.where(y, 5, 2) + moved_by] = 1
    return TabularRows(x.reshape(60, -1), y, np.ones(60, np.float32))


def test_codes_to_fit_are_those_of_every_moved_image() -> None:
    shape, rows = Shape(2, (0,) * 81, (9, 9)), dots()
    encoding = encode_rows(rows, shape)
    codes, goal = learning_codes(encoding, rows, shape, replace(FEW, shift=1))
    wanted = [encoding.codes(moved(rows.x, (9, 9), move)) for move in moves(1)]
    np.testing.assert_array_equal(codes, np.concatenate(wanted, 1))
    assert isinstance(goal, Classes)
    np.testing.assert_array_equal(goal.y, [*rows.y] * 5)
    assert goal.weight.shape == (300,)


def test_shifted_images_teach_what_a_shift_leaves_alone() -> None:
    """Tables that never saw a dot one pixel to the right take it for noise; they learn it from shifted images, also if the tables
    are fitted again."""
    import torch

    shape, elsewhere = Shape(2, (0,) * 81, (9, 9)), dots(1)
    right = {}
    for shift in (0, 1):
        model, _ = fit_tabular(dots(), shape, replace(FEW, shift=shift))
        again = refit_tables(model, dots(), 40, 20, replace(FEW, shift=shift))
        for name, each in (("whole", model), ("again", again)):
            answers = each(torch.from_numpy(elsewhere.x.reshape(-1, 9, 9))).argmax(1).numpy()
            right[name, shift] = (answers == elsewhere.y).mean()
    assert right["whole", 1] > 0.95 > 0.8 > right["whole", 0]
    assert right["again", 1] > 0.95


def test_pixels_that_do_not_vary_are_not_compared() -> None:
    rows = dots()
    rows.x.reshape(60, 9, 9)[:, :3] = 0.5
    model, _ = fit_tabular(rows, Shape(2, (0,) * 81, (9, 9)), FEW)
    assert model.tables.anchors[..., 0].min() >= 27


def arrays(path: Path, side: int) -> Path:
    np.savez(path, x=dots().x.reshape(60, 9, 9)[:, :side, :side], y=dots().y)
    return path


def test_images_are_shifted_by_default_and_older_configs_are_not(tmp_path: Path) -> None:
    config, _ = guess_config(arrays(tmp_path / "a.npz", 9), None, None)
    assert (config.data.shift, config.fit.n_tables, config.boosting().shift) == (1, 1000, 1)
    tiny, _ = guess_config(arrays(tmp_path / "tiny.npz", 7), None, None)
    assert (tiny.data.shift, tiny.fit.n_tables) == (0, 500)
    older = config.to_dict()
    del older["data"]["shift"]
    assert make_table_config(older, "older").boosting().shift == 0
    with pytest.raises(ArgumentError, match=r"data\.shift is 4, expected an integer from 0 to 3"):
        make_table_config({"data": {"path": "a", "shift": 4}}, "far")
    few = replace(config, fit=replace(config.fit, n_tables=2))
    train_table(few, Path(), tmp_path / "run")
    settings = fit_settings(tmp_path / "run")
    assert settings is not None
    assert settings.shift == 1
    assert load(tmp_path / "run").config.input_shape == (9, 9)


def test_columns_cannot_be_shifted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n" + "".join(f"{n % 7},{n % 5},{n % 2}\n" for n in range(40)))
    guessed, _ = guess_config(tmp_path / "a.csv", None, None)
    assert "shift" not in guessed.to_dict()["data"]
    config = TableConfig(TableSettings(str(tmp_path / "a.csv"), shift=1))
    with pytest.raises(DataError, match=r"data.shift is 1, expected 0: .* holds no images"):
        train_table(config, Path(), tmp_path / "run")
