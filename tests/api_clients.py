"""The makers' own clients, loaded by the first test that uses one:
each worker collects all tests.
"""

import importlib


class LoadedOnUse:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        # Pytest looks for marks in all that a module of tests names.
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


anthropic = LoadedOnUse("anthropic")
httpx2 = LoadedOnUse("httpx2")
openai = LoadedOnUse("openai")
