"""Commands in a world of other people's files: none is overwritten, and hostile names are shown harmless."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from lutetia.cli import main
from lutetia.cli.guard import LONGEST
from lutetia.errors import DataError
from lutetia.files import read_text
from lutetia.training import folder
from lutetia.training.folder import RunFolder

Capture = pytest.CaptureFixture[str]
FIT = ["--set", "fit.n_tables=2"]


def error(capsys: Capture, *arguments: object) -> str:
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 1
    return capsys.readouterr().err


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rows.csv"
    file.write_text("a,b,kind\n" + "".join(f"{number % 7},{number % 5},{'xy'[number % 2]}\n" for number in range(30)))
    return file


@pytest.fixture
def run(rows: Path) -> Path:
    assert main(["train", "rows.csv", "--out", "run", *FIT]) == 0
    return Path("run")


@pytest.mark.parametrize("theirs", ["summary.json", "notes.txt", "checkpoints/best/mine"])
def test_a_table_is_not_fitted_into_a_folder_of_other_files(theirs: str, rows: Path, capsys: Capture) -> None:
    file = Path("theirs", theirs)
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    assert "and no run, expected an empty folder" in error(capsys, "train", rows, "--out", "theirs", *FIT)
    assert [path for path in Path("theirs").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"


def test_a_config_beside_other_files_is_fitted_elsewhere(rows: Path, capsys: Capture) -> None:
    Path("project").mkdir()
    Path("project/first.toml").write_text('[data]\npath = "../rows.csv"\n[fit]\nn_tables = 2\n')
    for name in ("config.toml", "summary.json"):
        Path("project", name).write_text("mine")
    assert main(["train", "project/first.toml"]) == 0
    assert {path.name: path.read_text() for path in Path("project").iterdir() if path.name != "first.toml"} == {
        "config.toml": "mine",
        "summary.json": "mine",
    }
    assert main(["train", "runs/first/config.toml", "--set", "fit.n_tables=3"]) == 0  # its own folder: fitted again, there
    assert "n_tables = 3" in read_text("runs/first/config.toml", "a config")
    assert "expected an empty folder" in error(capsys, "train", "project/first.toml")


def test_two_fits_do_not_share_a_folder_and_a_failed_one_leaves_nothing(rows: Path, capsys: Capture) -> None:
    holder = RunFolder(Path("run"))
    with holder.held(again=False):
        assert "in use by another run" in error(capsys, "train", rows, "--out", "run", *FIT)
    assert main(["train", str(rows), "--out", "run", *FIT]) == 0

    def fit_halfway() -> None:
        with RunFolder(Path("new")).held(again=False):
            Path("new/config.toml").write_text("")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit_halfway()
    assert not Path("new").exists()


def test_a_lock_whose_file_has_gone_is_taken_anew(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last user removes it between the moment when it is opened and that when it is locked."""
    opened, files = folder._open_lock, []

    def open_late(file: Path) -> tuple[int, bool] | None:
        handle = opened(file)
        if not files:
            file.unlink()
        files.append(file)
        return handle

    monkeypatch.setattr(folder, "_open_lock", open_late)
    with RunFolder(Path("run")).held(again=False):
        assert len(files) == 2
        assert files[0].exists()
        with pytest.raises(DataError, match="in use by another run"), RunFolder(Path("run")).held(again=False):
            pass


def test_a_folder_that_cannot_be_is_refused_before_the_fit(rows: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lutetia.training.table_fit.fit_tabular", lambda *_, **__: pytest.fail("was fitted"))
    assert "is a file, or lies in one" in error(capsys, "train", rows, "--out", rows)


def test_inputs_and_models_are_not_overwritten(run: Path, capsys: Capture) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert "which is also the input" in error(capsys, "predict", run, "1,2", "rows.csv", "--csv", "./rows.csv")
    for name in ("manifest.json", "state.json"):
        told = error(capsys, "flow", run, "1,2", "--out", run / "checkpoints" / "best" / name)
        assert "a file of what was saved" in told
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    assert main(["predict", str(run), "1,2", "--csv", "new.csv"]) == 0
    assert main(["predict", str(run), "2,2", "--csv", "new.csv"]) == 0  # its own, and anybody's that is named


def test_a_cell_does_not_command_the_terminal(rows: Path, capsys: Capture) -> None:
    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(["same," + lines[0], *("\x1b[2J[/b]," + line for line in lines[1:])]))
    assert main(["train", str(rows), "--out", "run", *FIT]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "left out: all its values are \\x1b[2J[/b]" in said.out


@pytest.mark.parametrize("kind", ["column", "class", "cell"])
def test_endless_texts_are_told_of_in_short(kind: str, run: Path, capsys: Capture) -> None:
    endless = "q" * 100_000
    changed = {"column": ("kind", endless), "class": (",x\n", f",{endless}\n"), "cell": ("\n3,", f"\n{endless},")}[kind]
    Path("long.csv").write_text(Path("rows.csv").read_text().replace(*changed))
    command = ["predict", run, "long.csv"] if kind == "cell" else ["train", "long.csv", "--out", "other", *FIT]
    said = error(capsys, *command)
    assert "qqqq" in said
    assert ("expected a number" if kind == "cell" else "100,000 characters, expected 1,000 at most") in said
    assert len(said) < 400
    assert not Path("other").exists()
    assert len(error(capsys, "train", "rows.csv", "--target", endless, "--out", "other")) <= LONGEST


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data = 3\n", "model is missing, expected a table"),
        ('[data]\npath = "rows.csv"\n[fit]\nn_tables = 99999999999999999999999\n', "expected an integer from 1 to 1000000"),
        ('[data]\npath = "rows.csv"\n[fit]\ncandidates = 1000000000000\n', "expected an integer from 1 to 1000000"),
    ],
)
def test_configs_that_ask_for_too_much(text: str, message: str, rows: Path, capsys: Capture) -> None:
    Path("run.toml").write_text(text)
    assert message in error(capsys, "train", "run.toml", "--out", "run")
    assert not Path("run").exists()


def test_a_link_to_itself_and_an_end_of_memory_are_sentences(
    rows: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("loop.csv").symlink_to("loop.csv")
    assert "unexpected" not in error(capsys, "train", "loop.csv", "--out", "run")
    for lack in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 7 bytes")):
        monkeypatch.setattr("lutetia.training.table_fit.fit_tabular", MagicMock(side_effect=lack))
        assert error(capsys, "train", rows, "--out", "run").startswith("error: there is not enough memory")
    assert not Path("run").exists()


def test_targets_that_are_not_there_are_no_numbers(run: Path, capsys: Capture) -> None:
    Path("gap.csv").write_text("a,b,kind\n1,2,x\n1,2,NA\n")
    assert "no value of the target in row 2" in error(capsys, "evaluate", run, "gap.csv")
    assert "no column 'none'" in error(capsys, "evaluate", run, "rows.csv", "--label", "none")
    assert "3 columns, but data.label is 99" in error(capsys, "evaluate", run, "rows.csv", "--label", "99")
    for label in ("kind", "2"):
        assert main(["evaluate", str(run), "rows.csv", "--label", label]) == 0


@pytest.mark.parametrize(("command", "name"), [(["flow", "run", "1,2"], "run.html"), (["page", "run"], "model.html")])
def test_a_page_that_nobody_named_replaces_pages_of_ours_alone(command: list[str], name: str, run: Path, capsys: Capture) -> None:
    for _ in range(2):  # the second one replaces the first
        assert main(command) == 0
    Path(name).write_text("mine")
    assert f"{name} already exists and was not written by Lutetia" in error(capsys, *command)
    assert Path(name).read_text() == "mine"
    assert main([*command, "--out", name]) == 0  # it is named
    assert Path(name).read_text().startswith("<!doctype html>")
