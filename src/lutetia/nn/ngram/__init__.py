"""Tables whose rows are addressed by a hash of the last few tokens: the layer, its kernels, and the optimiser of its rows."""

from lutetia.nn.ngram.layer import NgramTables, ngram_tables
from lutetia.nn.ngram.row_adam import RowAdam

__all__ = ["NgramTables", "RowAdam", "ngram_tables"]
