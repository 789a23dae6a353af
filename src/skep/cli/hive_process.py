"""The process behind `skep up -d`."""

import sys

from skep.cli.hive import remote_nodes
from skep.supervisor.main import run_detached

if __name__ == "__main__":
    sys.exit(run_detached(remote_nodes))
