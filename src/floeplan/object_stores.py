"""S3 through obstore, with the credentials of PyIceberg's properties or of the environment.

A file is read with one request. A FileIO of PyIceberg asks for its length first, which doubles the round trips of
metadata.

Fail-safe: ``fetch`` leaves a file to the FileIO where obstore might not read it as the FileIO does: a FileIO of another
class than PyIceberg's, properties that have no counterpart here, or credentials that are neither in the properties nor
in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Coroutine
from functools import cache, lru_cache
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import Future

    from pyiceberg.io import FileIO

T = TypeVar("T")

S3_SCHEMES = ("s3", "s3a", "s3n")
_OPTIONS = {
    "endpoint": ("s3.endpoint",),
    "access_key_id": ("s3.access-key-id", "client.access-key-id"),
    "secret_access_key": ("s3.secret-access-key", "client.secret-access-key"),
    "session_token": ("s3.session-token", "client.session-token"),
    "region": ("s3.region", "client.region"),
}
_ANONYMOUS, _VIRTUAL = "s3.anonymous", "s3.force-virtual-addressing"
_KNOWN = {_ANONYMOUS, _VIRTUAL, *(name for names in _OPTIONS.values() for name in names)}
_OWN = ("pyiceberg.io.", "floeplan.catalog")
"""Modules of FileIO classes that read S3 as obstore does."""


def is_s3(location: str) -> bool:
    """Whether a location is that of an S3 object."""
    return location.startswith(tuple(f"{scheme}://" for scheme in S3_SCHEMES))


def s3_object(location: str, io: FileIO | None) -> tuple[Any, str]:
    """The store and the path of an S3 object, with the properties of ``io``, else with ``AWS_`` variables."""
    properties = {} if io is None else io.properties
    options: dict[str, Any] = {}
    for option, names in _OPTIONS.items():
        found = next((properties[name] for name in names if properties.get(name)), None)
        if found is not None:
            options[option] = str(found)
    if _is_true(properties.get(_ANONYMOUS)):
        options["skip_signature"] = True
    if _is_true(properties.get(_VIRTUAL)):
        options["virtual_hosted_style_request"] = True
    parts = urlsplit(location)
    return _s3_store(parts.netloc, frozenset(options.items())), parts.path.lstrip("/")


def fetch(location: str, io: FileIO | None) -> bytes | None:
    """All bytes of an S3 object with one request; ``None`` if the FileIO has to read it.

    Raises:
        OSError: The object cannot be read; ``FileNotFoundError`` if it does not exist.
    """
    if not _is_fetched(location, io):
        return None
    import obstore
    from obstore.exceptions import BaseError

    try:
        store, path = s3_object(location, io)
        _event_loop()  # it starts while this request waits, and the next ones need it
        return bytes(obstore.get(store, path).bytes())
    except BaseError as error:
        raise OSError(str(error).partition("\n")[0]) from error


def begin_fetch(location: str, io: FileIO | None) -> Future[bytes] | None:
    """Begin what ``fetch`` does; the result raises as it does."""
    if not _is_fetched(location, io):
        return None
    store, path = s3_object(location, io)

    async def get() -> bytes:
        from obstore.exceptions import BaseError

        try:
            return bytes((await _get(store, path, None))[0])
        except BaseError as error:
            raise OSError(str(error).partition("\n")[0]) from error

    return _begin(get())


def begin_suffix(store: Any, path: str, length: int) -> Future[tuple[Any, int]]:
    """Begin to request the last bytes of an object; the result has its size, too."""
    return _begin(_get(store, path, length))


async def _get(store: Any, path: str, suffix: int | None) -> tuple[Any, int]:
    import obstore

    response = await obstore.get_async(store, path, options={} if suffix is None else {"range": {"suffix": suffix}})
    return await response.bytes_async(), response.meta["size"]


def _begin(request: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a request on the event loop of all requests: a thread for each takes longer to start than some to answer."""
    started = _event_loop()
    if started.exception() is not None:
        _event_loop.cache_clear()
        request.close()
    loop = started.result()
    import asyncio  # imported by the thread of the loop: it takes 20 ms, and local tables do not need it

    return asyncio.run_coroutine_threadsafe(request, loop)


@cache
def _event_loop() -> Future[AbstractEventLoop]:
    """A loop that runs in a thread of its own, and will be there soon."""
    from concurrent.futures import Future

    started: Future[AbstractEventLoop] = Future()
    Thread(target=_run_loop, args=(started,), name="floeplan-store", daemon=True).start()
    return started


def _run_loop(started: Future[AbstractEventLoop]) -> None:
    try:
        import asyncio

        loop = asyncio.new_event_loop()
    except BaseException as error:  # raised where the loop is used
        started.set_exception(error)
        return
    started.set_result(loop)
    loop.run_forever()


os.register_at_fork(after_in_child=_event_loop.cache_clear)  # threads do not survive a fork


def _is_fetched(location: str, io: FileIO | None) -> bool:
    if io is None or not is_s3(location):
        return False
    return type(io).__module__.startswith(_OWN) and _has_known_credentials(io.properties)


def _has_known_credentials(properties: dict[str, Any]) -> bool:
    stated = {name for name in properties if name.startswith(("s3.", "client.")) and properties[name]}
    keys = not stated.isdisjoint(_OPTIONS["access_key_id"]) or "AWS_ACCESS_KEY_ID" in os.environ
    custom = properties.get("py-io-impl", "pyiceberg.io.")
    return stated <= _KNOWN and custom.startswith("pyiceberg.io.") and (keys or _is_true(properties.get(_ANONYMOUS)))


def _is_true(value: object) -> bool:
    return str(value or "").lower() == "true"


@lru_cache(maxsize=64)
def _s3_store(bucket: str, options: frozenset[tuple[str, Any]]) -> Any:
    """One store, and so one connection pool, per bucket and set of options."""
    from obstore.store import S3Store

    chosen = dict(options)
    plain = str(chosen.get("endpoint", "")).startswith("http://")
    return S3Store(bucket, client_options={"allow_http": plain}, **chosen)
