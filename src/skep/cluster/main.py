"""The nodes of a Ray cluster, handed to the supervisor of a hive whose settings name one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict

from skep.cluster.embassy import Embassy
from skep.cluster.ledger import ABANDONED_AFTER_S
from skep.cluster.surveying import SPARED_S, SURVEY_S, Surveys
from skep.engines.base import Launch
from skep.engines.lifecycle import RestartPolicy
from skep.errors import SkepError
from skep.launching import PullProgress
from skep.places import Paths
from skep.placing import kept_launches, place_launches, shared_paths
from skep.settings import Cluster, Settings


class RayNodes:
    """Places the replicas of one hive on the nodes of its cluster."""

    def __init__(self, where: Cluster, surveys: Surveys | None = None) -> None:
        self._where = where
        self._surveys = surveys or Surveys()

    def __repr__(self) -> str:
        return f"<RayNodes {self._where.address} {self._where.hive}>"

    def launches(
        self,
        settings: Settings,
        paths: Paths,
        progress: PullProgress = lambda _done, _total: None,
        *,
        running: Sequence[Launch] = (),
        starting: bool = True,
        avoid: Collection[str] = (),
        tell: Callable[[str], None] = lambda _line: None,
    ) -> tuple[Launch, ...]:
        """Return the replicas that these settings mean on the nodes as they are now.

        A lost node is no reason to refuse settings under which every replica stays where it is.
        """
        kept = None if starting else kept_launches(settings, paths, running)
        wait_s = SURVEY_S if kept is None else SPARED_S
        try:
            asked = shared_paths(settings)
            found = self._surveys.look(self._where.address, paths=asked, hive=self._where.hive, wait_s=wait_s)
            placed = place_launches(settings, paths, found, progress, running=running, avoid=avoid, tell=tell)
        except SkepError:
            if kept is None:
                raise
            placed = kept
        self._surveys.forget()
        return placed

    def connect(self, paths: Paths, policy: RestartPolicy) -> Embassy:
        """Return the link to the actors that run the replicas."""
        setup = {**asdict(self._where), "policy": asdict(policy), "abandoned_after_s": ABANDONED_AFTER_S}
        return Embassy(setup, paths.logs / "envoy.log")
