"""The routes of the batch API, stated once: the gateway mounts them without loading the API, and a
relay worker hands them on."""

from __future__ import annotations

from enum import Enum


class BatchRoute(Enum):
    """Method and path; one that ends with a slash is for all below it."""

    CREATE_FILE = (b"POST", "/v1/files")
    LIST_FILES = (b"GET", "/v1/files")
    SHOW_FILE = (b"GET", "/v1/files/")
    DELETE_FILE = (b"DELETE", "/v1/files/")
    CREATE_BATCH = (b"POST", "/v1/batches")
    LIST_BATCHES = (b"GET", "/v1/batches")
    SHOW_BATCH = (b"GET", "/v1/batches/")
    CANCEL_BATCH = (b"POST", "/v1/batches/")


BATCH_ROUTES: tuple[tuple[bytes, str], ...] = tuple(route.value for route in BatchRoute)
