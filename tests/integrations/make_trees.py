"""Makes the models in `trees/`: by LightGBM, XGBoost and CatBoost, small, with what each library itself says of some rows.

Run by hand where the three are installed: python tests/integrations/make_trees.py. The tests read the files, and need no library.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import catboost
import lightgbm
import numpy as np
import pandas
import xgboost

from lutetia.integrations.trees import from_trees

HERE = Path(__file__).parent / "trees"
N_ROWS = 24
LIGHTGBM: dict[str, Any] = {"n_estimators": 4, "num_leaves": 6, "min_child_samples": 5, "verbose": -1}
XGBOOST: dict[str, Any] = {"n_estimators": 4, "max_depth": 3}
CATBOOST: dict[str, Any] = {"iterations": 4, "depth": 3, "verbose": False, "allow_writing_files": False}
CODED = ["q", "c", "c"]  # a number, and two columns of categories
KEPT = ("loss_function",)  # of the parameters of CatBoost, which take 30 kB


def models(rng: np.random.Generator) -> dict[str, Any]:
    """The fitted models by the names of their files."""
    x = np.round(rng.normal(size=(300, 3)) * [1, 10, 0.1], 3)
    y = x[:, 0] + 0.1 * x[:, 1] * (x[:, 2] > 0) + 0.2 * rng.normal(size=300)
    holes = np.where(rng.random(x.shape) < 0.15, np.nan, x)
    yes, kinds, counts = (y > 0).astype(int), np.digitize(y, [-0.6, 0.6]), np.floor(np.exp(y))
    zeros = np.where(rng.random(x.shape) < 0.3, 0.0, x)
    light, boost, cat = lightgbm, xgboost, catboost
    stopped = boost.XGBClassifier(**XGBOOST | {"n_estimators": 40, "learning_rate": 1.0}, early_stopping_rounds=2)
    return {
        "lightgbm_binary.txt": light.LGBMClassifier(**LIGHTGBM, sigmoid=0.7).fit(holes, yes),
        "lightgbm_whole.txt": light.LGBMRegressor(**LIGHTGBM).fit(x, y + 100),
        "lightgbm_zeros.txt": light.LGBMRegressor(**LIGHTGBM, zero_as_missing=True).fit(zeros, y),
        "lightgbm_classes.txt": light.LGBMClassifier(**LIGHTGBM | {"n_estimators": 2}).fit(holes, kinds),
        "lightgbm_poisson.txt": light.LGBMRegressor(**LIGHTGBM, objective="poisson").fit(holes, counts),
        "lightgbm_forest.txt": light.LGBMRegressor(**LIGHTGBM, boosting_type="rf", bagging_fraction=0.6, bagging_freq=1).fit(
            x, y
        ),
        "xgboost_binary.json": boost.XGBClassifier(**XGBOOST).fit(holes, yes),
        "xgboost_classes.ubj": boost.XGBClassifier(**XGBOOST | {"n_estimators": 2}).fit(holes, kinds),
        "xgboost_poisson.json": boost.XGBRegressor(**XGBOOST, objective="count:poisson").fit(holes, counts),
        "xgboost_dart.json": boost.XGBRegressor(**XGBOOST, booster="dart", rate_drop=0.5, seed=3).fit(x, y + 100),
        "xgboost_stopped.json": stopped.fit(holes[:100], yes[:100], eval_set=[(holes[100:], yes[100:])], verbose=False),
        "catboost_binary.json": cat.CatBoostClassifier(**CATBOOST).fit(holes, yes),
        "catboost_last.json": cat.CatBoostRegressor(**CATBOOST, nan_mode="Max").fit(holes, y + 100),
        "catboost_classes.json": cat.CatBoostClassifier(**CATBOOST, grow_policy="Lossguide", max_leaves=5).fit(holes, kinds),
    }


def category_models(rng: np.random.Generator) -> dict[str, tuple[Any, Any]]:
    """The fitted models with columns of categories, by the names of their files, and rows to predict."""
    x, more = (category_rows(rng, count) for count in (400, 2 * N_ROWS))
    y = x["size"] * x["colour"].isin(["red", "blue"]) + x["code"].isin([3, 7]) + 0.1 * rng.normal(size=len(x))
    kinds = np.digitize(y, [-0.2, 0.6])
    codes, more_codes = (each.assign(colour=each["colour"].cat.codes.where(each["colour"].notna())) for each in (x, more))
    strange = more.assign(colour=more["colour"].cat.add_categories("violet").where(rng.random(len(more)) < 0.9, "violet"))
    more_codes.loc[::9, "code"] = 99
    words, more_words = (each.assign(colour=each["colour"].astype(object).fillna("none at all")) for each in (x, strange))
    light, boost, cat = lightgbm, xgboost, catboost
    few = {**LIGHTGBM, "min_data_per_group": 5, "cat_smooth": 1.0, "max_cat_to_onehot": 1}
    own = {**XGBOOST, "enable_categorical": True, "max_cat_to_onehot": 2}
    matrix = boost.DMatrix(codes, y, feature_types=CODED, enable_categorical=True)
    made = boost.train({"max_depth": 4, "max_cat_to_onehot": 2}, matrix, 4)
    last = cat.CatBoostRegressor(**CATBOOST, one_hot_max_size=20).fit(words, y, cat_features=["colour", "code"])
    return {
        "lightgbm_words.txt": (light.LGBMClassifier(**few | {"n_estimators": 2}).fit(x, kinds), strange),
        "lightgbm_codes.txt": (light.LGBMRegressor(**few).fit(codes, y, categorical_feature=["colour", "code"]), more_codes),
        "xgboost_words.json": (boost.XGBRegressor(**own).fit(x, y), more),
        "xgboost_codes.ubj": (made, more_codes),
        "catboost_words.json": (last, more_words),
    }


def category_rows(rng: np.random.Generator, count: int) -> pandas.DataFrame:
    """Rows of a number, words and codes, some of them missing."""
    words = rng.choice(["red", "green", "blue", "dark grey", "x,y", None], count, p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    colour = pandas.Categorical(words, ["red", "green", "blue", "dark grey", "x,y"])
    return pandas.DataFrame(
        {"size": np.round(rng.normal(size=count), 2), "colour": colour, "code": rng.choice([0, 3, 7, 9], count)}
    )


def save(model: Any, path: Path, pool: Any = None) -> None:
    """Write a model as its library does, without what a reader has no use for."""
    if path.name.startswith("lightgbm"):
        model.booster_.save_model(path)
        text = path.read_text("utf-8")
        words = "\npandas_categorical:" + text.rpartition("\npandas_categorical:")[2] if "words" in path.name else "\n"
        path.write_text(text.split("\nfeature_importances:")[0] + words, "utf-8")
        return
    model.save_model(str(path), **({"format": "json", "pool": pool} if path.name.startswith("catboost") else {}))
    if path.name.startswith("catboost"):
        document = json.loads(path.read_text("utf-8"))
        info = document["model_info"]
        params = {key: info["params"][key] for key in KEPT}
        document["model_info"] = {"class_params": info.get("class_params"), "params": params}
        path.write_text(json.dumps(document), "utf-8")


def rows_for(model: Any, rng: np.random.Generator, with_missing: bool) -> np.ndarray[Any, Any]:
    """Rows on the thresholds of a model, next to them, as floats of 32 bits next to them, and anywhere."""
    encoding = from_trees(model, missing="exact").model_.encoding
    x = rng.normal(size=(N_ROWS, 3)) * [1, 10, 0.1]
    for column in range(3):
        cuts = np.concatenate([edges[np.isfinite(edges)] for edges in encoding.edges[encoding.source == column].numpy()])
        cuts = cuts[np.abs(cuts) < 1e30]
        if not len(cuts):
            continue
        near = rng.choice(cuts, N_ROWS)
        single = near.astype(np.float32)
        ways = [x[:, column], near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf), single.astype(np.float64)]
        ways += [np.nextafter(single, np.float32(way)).astype(np.float64) for way in (np.inf, -np.inf)]
        x[:, column] = np.choose(rng.integers(0, len(ways), N_ROWS), ways)
    x[:6] = [[0.0] * 3, [-0.0] * 3, [1e-36] * 3, [-1e-36] * 3, [1e-45] * 3, [-1.0000000180025095e-35] * 3]
    if with_missing:
        x[rng.random(x.shape) < 0.15] = np.nan
    return x


def answers(model: Any, x: np.ndarray[Any, Any]) -> list[Any]:
    """What the library says: the number that is predicted, or the probability of each class."""
    given = model.predict_proba(x) if hasattr(model, "predict_proba") else model.predict(x)
    return np.asarray(given, np.float64).tolist()


def write_categories(rng: np.random.Generator) -> dict[str, Any]:
    """Write the files with categories; what their libraries say of some rows, which keep their words."""
    told = {}
    for name, (model, rows) in category_models(rng).items():
        pool = catboost.Pool(rows, cat_features=["colour", "code"]) if name.startswith("catboost") else None
        save(model, HERE / name, pool)
        x = rows
        if isinstance(model, xgboost.Booster):
            x = xgboost.DMatrix(rows, feature_types=CODED, enable_categorical=True)
        told[name] = {"rows": json.loads(rows.to_json(orient="values")), "answers": answers(model, x)}
    return told


def main() -> None:
    """Write all files."""
    warnings.simplefilter("ignore")
    HERE.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    told: dict[str, Any] = {"versions": {each.__name__: each.__version__ for each in (lightgbm, xgboost, catboost)}}
    told |= write_categories(np.random.default_rng(1))
    for name, model in models(rng).items():
        save(model, HERE / name)
        x = rows_for(model, rng, name != "lightgbm_whole.txt")
        rows = [[None if np.isnan(each) else each for each in row] for row in x.tolist()]
        told[name] = {"rows": rows, "answers": answers(model, x)}
    (HERE / "answers.json").write_text(json.dumps(told) + "\n", "utf-8")


if __name__ == "__main__":
    main()
