"""Packages, classes and Scala objects of a JVM by their names, each asked for once."""

from __future__ import annotations

from typing import Any, TypeAlias

from py4j.java_gateway import JavaClass, JavaMember

JavaObject: TypeAlias = Any


class Names:
    """A package of a JVM; the root has the empty name.

    py4j's own view asks the JVM about each part of a dotted name, every time. That was a third of
    the calls of a merge. Here, a part that begins with a capital letter or contains a `$` is a
    class.
    """

    def __init__(self, client: Any, name: str = "", known: dict[str, Any] | None = None) -> None:
        self._client, self._name = client, name
        self._known: dict[str, Any] = {} if known is None else known

    def __getattr__(self, part: str) -> Any:
        if part.startswith("__"):
            raise AttributeError(part)
        name = f"{self._name}.{part}" if self._name else part
        if part[0].isupper() or "$" in part:
            if name not in self._known:
                self._known[name] = _Class(name, self._client)
            return self._known[name]
        return Names(self._client, name, self._known)


class _Class(JavaClass):  # type: ignore[misc]
    """A class whose static methods and inner classes are asked for once.

    What a static field holds is asked for each time.
    """

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaClass):
            found = _Class(found._fqn, self._gateway_client)
        if isinstance(found, (JavaMember, JavaClass)):
            self.__dict__[name] = found
        return found


def singleton(package: JavaObject, name: str) -> JavaObject:
    """Return the instance of a Scala `object`: `singleton(jvm.org.apache.spark.sql.delta, "X")`."""
    found = getattr(package, f"{name}$")  # in a class, an object within an object
    if "MODULE$" not in found.__dict__:
        found.__dict__["MODULE$"] = getattr(found, "MODULE$")
    return found.__dict__["MODULE$"]
