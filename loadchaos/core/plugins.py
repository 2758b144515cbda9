"""Entries that installed packages add to the tables of loadchaos, by entry points such as `loadchaos.payloads`.

A `PluginTable` reads the entry points when it is asked, never when its module is imported: the module of an entry imports
loadchaos.api, which needs all others. docs/how-to/plugins.md.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from loadchaos.core.errors import LoadchaosError
from loadchaos.core.version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
_GROUP = "loadchaos."


class PluginError(LoadchaosError):
    """A plugin that cannot be used."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package; `kind` is the last word of its group."""

    kind: str
    entry: EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def package(self) -> str:
        return self.entry.dist.name if self.entry.dist else "?"

    @property
    def version(self) -> str:
        return self.entry.dist.version if self.entry.dist else "?"

    def error(self, why: str) -> PluginError:
        return PluginError(f"plugin {self.name!r} of loadchaos.{self.kind}, from {self.owner}: {why}")

    @property
    def owner(self) -> str:
        return f"{self.package} {self.version}"


@cache
def installed() -> tuple[Plugin, ...]:
    """All plugins of this Python environment, by kind and name, without loading one."""
    from importlib.metadata import entry_points  # slow to import: a command without a table needs none of it

    found = entry_points()
    groups = sorted(group for group in found.groups if group.startswith(_GROUP))
    plugins = [Plugin(group.removeprefix(_GROUP), entry) for group in groups for entry in found.select(group=group)]
    return tuple(sorted(plugins, key=lambda p: (p.kind, p.name, p.package)))


def versions() -> dict[str, str]:
    """Versions of the packages that have plugins, by package."""
    return {plugin.package: plugin.version for plugin in installed()}


_TABLES: list[PluginTable[Any]] = []


def left_out() -> list[PluginError]:
    """Mistakes of the plugins of all tables in use; it loads them."""
    return [error for table in _TABLES for error in table.left_out]


class PluginTable(Mapping[str, T], Generic[T]):
    """Entries by name: the built-in ones, then those of plugins.

    `values` and `items` leave out a plugin that is broken or has a name of another owner. Asked for by its name, it
    raises PluginError. A plugin is loaded once, when its entry is needed.
    """

    def __init__(self, kind: str, base: Any, built_in: Mapping[str, T]) -> None:
        """Args:
        kind: of the entry points: `payloads` for `loadchaos.payloads`.
        base: class of each entry, or the base class where the entries are classes.
        built_in: entries of loadchaos itself.
        """
        self.built_in = built_in
        self._kind, self._base = kind, base
        self._classes = isinstance(next(iter(built_in.values()), None), type)
        self._found: dict[str, T | PluginError] = {}
        _TABLES.append(self)

    @cached_property
    def plugins(self) -> Mapping[str, Sequence[Plugin]]:
        """Plugins by name; several of one name are a mistake."""
        mine = [plugin for plugin in installed() if plugin.kind == self._kind]
        return {plugin.name: [p for p in mine if p.name == plugin.name] for plugin in mine}

    def leave_out(self, name: str, why: str) -> None:
        """Mark a plugin as broken that was found to be so after it was loaded."""
        self._found[name] = self.plugins[name][0].error(why)

    @property
    def left_out(self) -> list[PluginError]:
        """Mistakes of all plugins of this table; it loads them."""
        return [found for name in self.plugins if isinstance(found := self._find(name), PluginError)]

    def __getitem__(self, name: str) -> T:
        found = self._found.get(name) or self._find(name)
        if isinstance(found, PluginError):
            raise found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.built_in, *self.plugins)))

    def __len__(self) -> int:
        return len({*self.built_in, *self.plugins})

    def values(self) -> ValuesView[T]:
        return self._usable().values()

    def items(self) -> ItemsView[str, T]:
        return self._usable().items()

    def _usable(self) -> dict[str, T]:
        found = {name: self._find(name) for name in self.plugins}
        return {**self.built_in, **{n: e for n, e in found.items() if not isinstance(e, PluginError)}}

    def _find(self, name: str) -> T | PluginError:
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    def _load(self, name: str) -> T | PluginError:
        plugins = self.plugins.get(name, ())
        owners = [f"loadchaos {__version__}"] * (name in self.built_in) + [plugin.owner for plugin in plugins]
        if len(owners) > 1:
            return plugins[0].error(f"{' and '.join(owners)} both have this name: uninstall one, or rename the plugin")
        if not plugins:
            return self.built_in[name]
        try:
            found = plugins[0].entry.load()
        except (Exception, SystemExit) as e:  # noqa: BLE001 - a foreign module may raise anything
            return plugins[0].error(f"{plugins[0].entry.value} cannot be loaded: {type(e).__name__}: {e}")
        if self._base is Callable:
            right = callable(found)  # a class is one, too
        elif self._classes:
            right = isinstance(found, type) and issubclass(found, self._base)
        else:
            right = isinstance(found, self._base)
        if not right:
            return plugins[0].error(
                f"{plugins[0].entry.value} is no {'subclass of ' * self._classes}{self._base.__name__}"
            )
        if (own := getattr(found, "name", name)) != name:
            return plugins[0].error(f"its entry point is called {name!r}, and its `name` is {own!r}: make them equal")
        return found  # type: ignore[no-any-return]
