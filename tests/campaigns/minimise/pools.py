"""A pool of servers that are not there, for tries whose results a test gives."""

from collections.abc import Callable
from typing import Any

from loadchaos.campaigns.minimise.trials import Trials
from loadchaos.campaigns.replay.expected import ExpectedFailure
from loadchaos.campaigns.replay.one_try import TryPlan
from loadchaos.campaigns.replay.servers import ServerChoice
from loadchaos.core.errors import TargetError
from loadchaos.run.options import Options
from loadchaos.server.process.launcher import CommandLine


class Held:
    def __init__(self) -> None:
        self.runs, self.alive, self.url = 0, True, "http://127.0.0.1:1"

    async def reset_caches(self, _: str) -> list[str]:
        return []


class Pool:
    """Counts starts; `refuse` says which commands do not start."""

    def __init__(self, refuse: Callable[[ServerChoice], bool] = lambda _: False) -> None:
        self.started, self.refuse = 0, refuse
        self.held: Held | None = None

    async def healthy_server(self, choice: ServerChoice) -> Held:
        if self.refuse(choice):
            raise TargetError("it exited with code 1")
        if self.held is None:
            self.held, self.started = Held(), self.started + 1
        return self.held

    async def stop(self) -> None:
        self.held = None

    def serve(self, trials: Trials) -> None:
        stand_in: Any = self
        trials._pool = stand_in


def plan_of(*argv: str) -> TryPlan:
    return TryPlan(ServerChoice(CommandLine(argv, {}, "http://127.0.0.1:1")), ExpectedFailure("x"), Options(), {})
