"""Fitted ensembles of trees as models of tables that predict the same: `from_trees`, and `read_trees` for files.

model = from_trees(fitted)          # of scikit-learn, LightGBM, XGBoost or CatBoost
imported = read_trees("model.txt")  # LightGBM's text, XGBoost's JSON or UBJSON, CatBoost's JSON
"""

from lutetia.integrations.trees.ensemble import Ensemble
from lutetia.integrations.trees.estimators import from_trees
from lutetia.integrations.trees.files import read_ensemble, read_trees
from lutetia.integrations.trees.tables import Imported, to_tabular

__all__ = ["Ensemble", "Imported", "from_trees", "read_ensemble", "read_trees", "to_tabular"]
