"""Weights of one's own, named on the command line."""

from skep.cli.tune_target import TuneOptions, absolute_paths


def test_files_are_kept_by_their_whole_path(tmp_path, monkeypatch):
    """The preset of the best is started from any folder, and so is the tuning taken up again."""
    (tmp_path / "mine.gguf").touch()
    monkeypatch.chdir(tmp_path)
    found = absolute_paths(TuneOptions("./mine.gguf", checkpoints=("mine.gguf", "some/model", "./gone.gguf")))
    assert found.name == str(tmp_path / "mine.gguf")
    assert found.checkpoints == (str(tmp_path / "mine.gguf"), "some/model", "./gone.gguf")
