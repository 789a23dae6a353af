"""Settings that are merged into the files of a client, and taken out again."""

import tomllib

import pytest

from skep.clients.catalog import EndpointFacts, client_named
from skep.clients.written import undo_settings, write_settings

CODEX = client_named("codex")
FACTS = EndpointFacts(
    root="http://box:8400",
    url="http://box:8400/v1",
    key="none",
    model="fake-model",
    context=65_536,
    slots=4,
    session="a-session",
    now="2026-11-19T00:00:00.000Z",
)


class Home:
    """A home with the configuration of one client, and skep's record of what was written there."""

    def __init__(self, folder, client):
        self.client = client
        self.env = {"HOME": str(folder)}
        self.record = folder / "state" / f"{client.program}.json"
        self.files = [folder / file.paths[-1].removeprefix("~/") for file in client.files]

    def put(self, content, number=0):
        path = self.files[number]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def write(self, facts=FACTS):
        return write_settings(self.client, facts, self.record, self.env)

    def undo(self):
        return undo_settings(self.client, self.record)

    def names(self, number=0):
        """Return what lies in the folder of a file."""
        return sorted(path.name for path in self.files[number].parent.iterdir())


@pytest.fixture
def codex(tmp_path):
    return Home(tmp_path, CODEX)


def test_a_table_that_stood_empty_does_not_keep_what_skep_wrote_in_it_from_being_taken_out(codex):
    path = codex.put(b"# mine\n[model_providers]  # none yet\n")
    codex.write()
    path.write_text(f"{path.read_text()}[tui]\nnotifications = true\n")
    codex.undo()
    assert tomllib.loads(path.read_text()) == {"model_providers": {}, "tui": {"notifications": True}}
    assert path.read_text().startswith("# mine\n[model_providers]  # none yet\n")
