"""Guards and fake engines that a replica starts are forks of the process of the test."""

import subprocess

import pytest

from forked_processes import ForkedChild


@pytest.fixture(autouse=True)
def forked_children(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", ForkedChild)
