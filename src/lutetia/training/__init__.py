"""Training: config files, data, optimisers, the loop, checkpoints, and many processes.

Each name is imported on first use: training loads torch's distributed tensors, which data and configs do not need, and a command
that reads a file needs neither. `__all__` is for users, the other names for commands and estimators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutetia._shared.doors import lazy_door

if TYPE_CHECKING:
    from lutetia.training.arrays import read_npy, read_npz
    from lutetia.training.batches import in_order as batches_in_order
    from lutetia.training.boosting import Boosted, Boosting, Each
    from lutetia.training.boosting import score as add_table_scores
    from lutetia.training.checkpoint import STATE as STATE_FILE
    from lutetia.training.checkpoint import read_state
    from lutetia.training.class_counts import class_report
    from lutetia.training.columns import numbered as class_numbers
    from lutetia.training.columns import unknown_categories, without_words
    from lutetia.training.config import Config, DataConfig, make_config, read_config, read_toml
    from lutetia.training.config import override as override_setting
    from lutetia.training.data import Data, Names, Samples, Text, open_data, standard_library
    from lutetia.training.date_columns import DateColumn, have_times
    from lutetia.training.date_columns import dated as date_numbers
    from lutetia.training.detection import average_precision, roc_auc
    from lutetia.training.evaluate import evaluation_sums
    from lutetia.training.fitting import fit
    from lutetia.training.forecasts import forecast_labels, forecast_rows, naive_errors
    from lutetia.training.formats import check_expansion, check_file, read_idx
    from lutetia.training.images import IMAGES as IMAGE_SUFFIXES
    from lutetia.training.images import ImageSettings, colours_first, images_in, is_damaged, labelled_images, read_pixels
    from lutetia.training.importance import column_importance, word_importance
    from lutetia.training.interactions import Interactions
    from lutetia.training.intervals import error_bounds, half_widths, interval_bounds, interval_ends
    from lutetia.training.own_loss import function_name
    from lutetia.training.progress import Live, Silent
    from lutetia.training.progress import clock as duration_text
    from lutetia.training.queries import query_numbers
    from lutetia.training.ranges import describe_columns
    from lutetia.training.resharding import full_state_dict, load_full_state_dict
    from lutetia.training.row_columns import read_weights
    from lutetia.training.run import train
    from lutetia.training.shape_run import counting, labelled, shapes_for
    from lutetia.training.shaping import Shaping
    from lutetia.training.shard_files import load_shards, save_shards
    from lutetia.training.sharding import shard_detectors
    from lutetia.training.signal_shapes import LabelledWindows, ShapeTrial, choose_shapes, try_shapes
    from lutetia.training.splits import Split
    from lutetia.training.table_checks import check_fit
    from lutetia.training.table_files import KINDS as TABLE_KINDS
    from lutetia.training.table_files import UNNAMED as UNNAMED_COLUMN
    from lutetia.training.table_files import LearningTable, TableFile, find_target, is_table, read_table_file
    from lutetia.training.table_files import named as column_names
    from lutetia.training.table_fit import fit_rows, suit_limits, table_shape
    from lutetia.training.table_measure import measure as measure_tabular
    from lutetia.training.table_parts import fold_rows, learning_rows
    from lutetia.training.table_refit import Trial as RefitTrial
    from lutetia.training.table_refit import refit_tables, try_refit
    from lutetia.training.table_run import (
        TableConfig,
        guess_config,
        held_out,
        holds_table_run,
        is_table_config,
        make_table_config,
        open_table,
        train_table,
    )
    from lutetia.training.tables import Cells, is_number, label_column, read_cells
    from lutetia.training.tables import class_names as labels_of
    from lutetia.training.tables import numbers as numeric_columns
    from lutetia.training.tabular import Shape, TabularRows, balanced_factors, encode_rows, fit_tabular
    from lutetia.training.tabular import make_model as make_tabular
    from lutetia.training.target_column import make_target, unusual_numbers
    from lutetia.training.target_fit import fit_targets, one_target, target_bounds
    from lutetia.training.target_run import (
        OpenedTarget,
        check_targets,
        guess_targets,
        joined_rows,
        of_target,
        open_targets,
        targets_of,
        train_targets,
    )
    from lutetia.training.task import context_of, metrics_of
    from lutetia.training.task import told as metrics_text
    from lutetia.training.texts import as_texts, describe_texts, looks_like_text, model_rows, read_texts, with_texts
    from lutetia.training.units import find_unit, without_unit
    from lutetia.training.unusual import N_ANCHORS as UNUSUAL_ANCHORS
    from lutetia.training.unusual import N_TABLES as UNUSUAL_TABLES
    from lutetia.training.unusual import SHARE as UNUSUAL_SHARE
    from lutetia.training.unusual import fit_unusual, unusual_settings
    from lutetia.training.unusual import n_fits as n_unusual_fits
    from lutetia.training.window_example import HeldRows, held_rows
    from lutetia.training.window_guess import guess_forecast, guess_windows
    from lutetia.training.windows import (
        WindowRows,
        WindowsRead,
        make_signal,
        recordings,
        window_labels,
        window_places,
        window_rows,
    )

__all__ = [
    "Config",
    "Data",
    "DataConfig",
    "Samples",
    "Text",
    "fit",
    "fit_tabular",
    "full_state_dict",
    "load_full_state_dict",
    "load_shards",
    "make_config",
    "open_data",
    "read_config",
    "save_shards",
    "shard_detectors",
    "train",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "arrays": "read_npy read_npz",
        "batches": "batches_in_order=in_order",
        "boosting": "Boosted Boosting Each add_table_scores=score",
        "checkpoint": "STATE_FILE=STATE read_state",
        "class_counts": "class_report",
        "columns": "class_numbers=numbered unknown_categories without_words",
        "config": "Config DataConfig make_config override_setting=override read_config read_toml",
        "data": "Data Names Samples Text open_data standard_library",
        "date_columns": "DateColumn date_numbers=dated have_times",
        "detection": "average_precision roc_auc",
        "evaluate": "evaluation_sums",
        "fitting": "fit",
        "forecasts": "forecast_labels forecast_rows naive_errors",
        "formats": "check_expansion check_file read_idx",
        "images": "IMAGE_SUFFIXES=IMAGES ImageSettings colours_first images_in is_damaged labelled_images read_pixels",
        "importance": "column_importance word_importance",
        "intervals": "error_bounds half_widths interval_bounds interval_ends",
        "interactions": "Interactions",
        "own_loss": "function_name",
        "progress": "Live Silent duration_text=clock",
        "queries": "query_numbers",
        "ranges": "describe_columns",
        "resharding": "full_state_dict load_full_state_dict",
        "row_columns": "read_weights",
        "run": "train",
        "shaping": "Shaping",
        "shape_run": "counting labelled shapes_for",
        "signal_shapes": "LabelledWindows ShapeTrial choose_shapes try_shapes",
        "shard_files": "load_shards save_shards",
        "sharding": "shard_detectors",
        "window_example": "HeldRows held_rows",
        "window_guess": "guess_forecast guess_windows",
        "windows": "WindowRows WindowsRead make_signal recordings window_labels window_places window_rows",
        "splits": "Split",
        "table_files": "LearningTable TABLE_KINDS=KINDS TableFile UNNAMED_COLUMN=UNNAMED"
        " column_names=named find_target is_table read_table_file",
        "table_fit": "fit_rows suit_limits table_shape",
        "table_measure": "measure_tabular=measure",
        "table_parts": "fold_rows learning_rows",
        "table_refit": "RefitTrial=Trial refit_tables try_refit",
        "table_checks": "check_fit",
        "table_run": "TableConfig guess_config held_out holds_table_run is_table_config make_table_config open_table train_table",
        "tables": "Cells is_number label_column labels_of=class_names numeric_columns=numbers read_cells",
        "tabular": "TabularRows Shape balanced_factors encode_rows fit_tabular make_tabular=make_model",
        "target_fit": "fit_targets one_target target_bounds",
        "target_run": "OpenedTarget check_targets guess_targets joined_rows of_target open_targets targets_of train_targets",
        "target_column": "make_target unusual_numbers",
        "task": "context_of metrics_of metrics_text=told",
        "texts": "as_texts describe_texts looks_like_text model_rows read_texts with_texts",
        "units": "find_unit without_unit",
        "unusual": "UNUSUAL_ANCHORS=N_ANCHORS UNUSUAL_SHARE=SHARE UNUSUAL_TABLES=N_TABLES fit_unusual"
        " n_unusual_fits=n_fits unusual_settings",
    },
)
