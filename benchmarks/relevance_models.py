"""Relevance runs on the models of transformers' own tests, tiny and with random weights.

With `--suite FOLDER`, a checkout of transformers, models and inputs are those of its tests (`suite_models.py`); without it, sizes
and inputs are guessed for each model type (`tiny_models.py`). `relevance_survey.py` says what the outcomes mean.

    lutetia bench relevance_models [--quick] [--json] [--save] [-- --suite FOLDER --only BertModel --seconds 20 --minutes 30]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from relevance_survey import Build, add_options, survey, tables_of, too_few, with_others
from relevance_vision import import_torchvision
from results import finish, options_of, result, rows_of
from suite_models import build as build_tested
from suite_models import test_cases
from tiny_models import build as build_guessed

NEEDS = ("transformers",)
LEAST = 0.99  # the claimed share of the models that were built
QUICK = ("bert", "llama")


def builders_of(suite: Path | None, only: Sequence[str]) -> Mapping[str, Build]:
    """How to build each model, by its name: a class of the library's tests, or a model type; of the tests perhaps `only` some."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    if suite is not None:
        if find_spec("torchvision") is not None:
            import_torchvision()
        return {name: partial(build_tested, case) for name, case in test_cases(suite, only).items()}
    return {name: partial(build_guessed, name) for name in MODEL_MAPPING_NAMES}


def version() -> str:
    """The version of the library that is imported, which may be the checkout's and not the installed one."""
    import transformers

    return str(transformers.__version__)


def main(argv: list[str] | None = None) -> int:
    """Survey the models; 1 when fewer ran than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--suite", type=Path, help="a checkout of transformers, whose tests make the models")
    add_options(parser, seconds=20)
    options = parser.parse_args(argv)
    builders = builders_of(options.suite, options.only or ())
    names = options.only or (QUICK if options.quick and options.suite is None else sorted(builders))
    rows = survey(builders, names, options)
    settings = {"models": len(names), "seconds": options.seconds}
    found = result(__doc__, "relevance_models", settings, tables_of(rows))
    found["sources"]["run"]["versions"]["transformers"] = version()
    if options.only and options.save is not None and options.save.exists():
        found = with_others(found, options.save)
    return finish({**found, "missed": too_few(rows_of(found, "models"), LEAST, "models")}, options)


if __name__ == "__main__":
    sys.exit(main())
