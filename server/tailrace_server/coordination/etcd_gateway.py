"""Requests to etcd over HTTP: endpoints in turn, TLS, tokens, and bounds on time and size.

A request goes to the endpoint that answered last, and then to the others. Each has ``REQUEST_S`` for its answer.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import trio

from tailrace_server.coordination.coordinator import (
    LeaseGone,
    StoreDamaged,
    StoreError,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
)
from tailrace_server.coordination.etcd_codec import Fault, Header, error_text, fault_of, header_of, parse
from tailrace_server.coordination.store_state import StoreEvent, StoreHealth
from tailrace_server.coordination.store_url import StoreUrl

# The seconds in which one endpoint has to answer a request. Etcd itself gives up a change after about 7 s.
REQUEST_S = 2.0
# The bytes of the longest answer that is read. The keys of a cluster of 100 nodes take some 50 kB.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
_PASSWORD_BYTES_MAX = 4_096
# A member of etcd without a leader ends watches that carry this, in place of staying silent.
_HEADERS = {"Grpc-Metadata-hasleader": "true", "Accept-Encoding": "identity"}


class EtcdGateway:
    """The endpoints of etcd. Only its own methods change its fields."""

    def __init__(self, url: StoreUrl, health: StoreHealth) -> None:
        """Reads the certificates. Raises StoreRefused if a file cannot be read. ``aclose`` ends its connections."""
        self._url = url
        self.health = health
        scheme = "https" if url.tls else "http"
        self._endpoints = [f"{scheme}://{address}" for address in url.endpoints]
        self._next = 0  # the endpoint that is asked first
        self._token = ""
        self.last = Header(0, 0)  # the last cluster id, and the highest revision that it told
        self.restores = 0  # the number of times that etcd went back
        self._client = httpx2.AsyncClient(
            verify=_tls(url) if url.tls else False,
            timeout=None,  # `_post` and `stream` bound it
            trust_env=False,
            follow_redirects=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
            headers=_HEADERS,
        )

    async def aclose(self) -> None:
        """Ends all connections."""
        await self._client.aclose()

    async def ask(self, path: str, body: Mapping[str, Any], *, changes: bool = False) -> dict[str, Any]:
        """Returns the answer to a POST of ``body``.

        ``changes``: the request must not be sent twice. Raises StoreOutcomeUnknown only for such a request, and the
        other errors of `Coordinator.txn`.
        """
        failures: list[str] = []
        floor, restores = self.last, self.restores
        for turn in range(len(self._endpoints)):
            number = (self._next + turn) % len(self._endpoints)
            try:
                value = await self._ask_with_token(self._endpoints[number], path, body, changes=changes)
            except StoreUnreachable as error:
                failures.append(str(error))
                continue
            except StoreOutcomeUnknown as error:
                if changes:
                    self.health.note(StoreEvent.NO_ANSWER, str(error))
                    self._next = (number + 1) % len(self._endpoints)
                    raise
                failures.append(str(error))
                continue
            except StoreRefused as error:
                self.health.note(StoreEvent.REFUSED, str(error))
                raise
            self._next = number
            if "header" in value:
                self._compare(header_of(value), floor, restores)
            return value
        why = "; ".join(failures)
        self.health.note(StoreEvent.NO_ANSWER, why)
        raise StoreUnreachable(why)

    def _compare(self, header: Header, floor: Header, restores: int) -> None:
        """Compares an answer with ``floor``, which etcd had told before the request."""
        if restores != self.restores:
            return  # the request was sent to the etcd before
        if floor.cluster_id not in (0, header.cluster_id):
            why = f"etcd is another cluster: its id was {floor.cluster_id:x}, and is {header.cluster_id:x}"
        elif header.revision < floor.revision:
            why = f"etcd's revision went back from {floor.revision} to {header.revision}: it was restored from a backup"
        else:
            if header.revision > self.last.revision or header.cluster_id != self.last.cluster_id:
                self.last = header
            return
        self.last = header
        self.restores += 1
        self._token = ""
        self.health.note(StoreEvent.WENT_BACK, why)

    async def _ask_with_token(
        self, endpoint: str, path: str, body: Mapping[str, Any], *, changes: bool
    ) -> dict[str, Any]:
        """Asks one endpoint; with a new token if the present one is missing or too old."""
        for is_retry in (False, True):
            headers = await self._authorization(endpoint)
            started = trio.current_time()
            status, data = await self._post(endpoint, path, body, headers)
            try:
                value = parse(data)
            except StoreDamaged:
                if status == 200:
                    raise
                value = {"error": f"HTTP {status}"}
            if status == 200 and "error" not in value:
                self.health.answered(endpoint, trio.current_time() - started)
                return value
            fault, text = fault_of(status, value), f"{endpoint}: {error_text(value) or f'HTTP {status}'}"
            if fault is Fault.TOKEN and self._url.user and not is_retry:
                self._token = ""
                continue
            raise self._error(fault, text, changes=changes)
        raise AssertionError("the second try returns or raises")

    def _error(self, fault: Fault, text: str, *, changes: bool) -> StoreError:
        if fault in (Fault.TOKEN, Fault.REFUSED):
            return StoreRefused(text)
        if fault is Fault.LEASE_GONE:
            return LeaseGone(text)
        if fault is Fault.UNAVAILABLE:
            return StoreOutcomeUnknown(text) if changes else StoreUnreachable(text)
        if fault is Fault.READ_ONLY:
            self.health.note(StoreEvent.READ_ONLY, text)
        return StoreError(text)

    async def _authorization(self, endpoint: str) -> dict[str, str]:
        if not self._url.user:
            return {}
        if not self._token:
            body = {"name": self._url.user, "password": _password(self._url.password_file)}
            status, data = await self._post(endpoint, "auth/authenticate", body, {}, is_safe=True)
            value = parse(data)
            if status != 200:
                text = f"{endpoint}: {error_text(value) or f'HTTP {status}'}"
                if fault_of(status, value) is Fault.UNAVAILABLE:
                    raise StoreUnreachable(text)
                raise StoreRefused(f"user {self._url.user!r} is refused: {text}")
            self._token = str(value.get("token", ""))
        return {"Authorization": self._token}

    async def _post(
        self, endpoint: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str], *, is_safe: bool = False
    ) -> tuple[int, bytes]:
        """Returns status and body. Raises StoreUnreachable if nothing was sent, else StoreOutcomeUnknown.

        ``is_safe``: the request changes nothing, so that it is StoreUnreachable always.
        """
        lost = StoreUnreachable if is_safe else StoreOutcomeUnknown
        with trio.move_on_after(REQUEST_S) as scope:
            try:
                async with self._client.stream("POST", f"{endpoint}/v3/{path}", json=body, headers=headers) as response:
                    return response.status_code, await _read(response)
            except httpx2.ConnectError as error:
                raise _refusal_or(StoreUnreachable, endpoint, error) from None
            except httpx2.HTTPError as error:
                raise _refusal_or(lost, endpoint, error) from None
        assert scope.cancelled_caught
        raise lost(f"{endpoint} did not answer within {REQUEST_S:g} s")

    @contextlib.asynccontextmanager
    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[Lines]:
        """Sends ``body`` to the endpoint that answered last; the body gets the lines of the answer.

        The lines raise StoreUnreachable if the connection breaks. Raises as `ask`.
        """
        endpoint = self._endpoints[self._next]
        request = self._client.build_request(
            "POST", f"{endpoint}/v3/{path}", json=body, headers=await self._authorization(endpoint)
        )
        response = None
        with trio.move_on_after(REQUEST_S):
            try:
                response = await self._client.send(request, stream=True)
            except httpx2.HTTPError as error:
                raise _refusal_or(StoreUnreachable, endpoint, error) from None
        if response is None:
            raise StoreUnreachable(f"{endpoint} did not answer within {REQUEST_S:g} s")
        try:
            if response.status_code != 200:
                value = await self._error_of(response, endpoint)
                if fault_of(response.status_code, value) is Fault.TOKEN:
                    self._token = ""
                    raise StoreUnreachable(f"{endpoint}: {error_text(value)}")
                raise self._error(fault_of(response.status_code, value), error_text(value), changes=False)
            lines = Lines(response, endpoint)
            try:
                yield lines
            finally:
                await lines.aclose()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + REQUEST_S):
                await response.aclose()

    async def _error_of(self, response: httpx2.Response, endpoint: str) -> dict[str, Any]:
        with trio.move_on_after(REQUEST_S):
            try:
                return parse(await _read(response))
            except (httpx2.HTTPError, StoreDamaged):
                pass
        return {"error": f"{endpoint}: HTTP {response.status_code}"}

    def prefer_another(self) -> None:
        """Asks another endpoint first from now on: a stream of the present one has broken."""
        self._next = (self._next + 1) % len(self._endpoints)


async def _read(response: httpx2.Response) -> bytes:
    parts, size, rest = [], 0, response.aiter_raw()
    async for part in rest:
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            await _end(rest)
            raise StoreDamaged(f"an answer of etcd has more than {ANSWER_BYTES_MAX} bytes")
    return b"".join(parts)


async def _end(parts: AsyncIterator[bytes]) -> None:
    """Ends the reading of an answer that goes on.

    The iterator of httpx2 is a generator over others. `aclose` would end the first one only; a cancelled read ends all.
    """
    with trio.CancelScope() as scope, contextlib.suppress(httpx2.HTTPError):
        scope.cancel()
        async for _ in parts:
            pass


class Lines:
    """The lines of an answer that goes on. It belongs to one task."""

    def __init__(self, response: httpx2.Response, endpoint: str) -> None:
        self._parts = response.aiter_raw()
        self._endpoint = endpoint
        self._lines: list[bytes] = []  # complete ones, the last one first
        self._rest = b""

    async def next(self) -> bytes:
        """Returns the next line. Raises StoreUnreachable if the connection breaks, StoreDamaged, StoreRefused."""
        while not self._lines:
            try:
                part = await anext(self._parts, b"")
            except httpx2.HTTPError as error:
                raise _refusal_or(StoreUnreachable, self._endpoint, error) from None
            if not part:
                raise StoreUnreachable(f"{self._endpoint} ended the watch")
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._lines = [line for line in reversed(lines) if line]
            if len(self._rest) > ANSWER_BYTES_MAX:
                raise StoreDamaged(f"a message of etcd has more than {ANSWER_BYTES_MAX} bytes")
        return self._lines.pop()

    async def aclose(self) -> None:
        """Ends the reading."""
        await _end(self._parts)


def _refusal_or(kind: type[StoreError], endpoint: str, error: BaseException) -> StoreError:
    """Returns StoreRefused if TLS has failed, else an error of ``kind``."""
    cause: BaseException | None = error
    text = ""
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return StoreRefused(f"{endpoint}: TLS: {cause.reason or cause}")
        text = str(cause) or text  # that of the system, which is the last one
        # Trio tells the failure at each address of a host.
        parts = cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
        cause = parts[0] if parts else cause.__cause__ or cause.__context__
    return kind(f"{endpoint}: {text or type(error).__name__}")


def _tls(url: StoreUrl) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=url.ca or None)
        if url.cert:
            context.load_cert_chain(url.cert, url.key)
    except OSError as error:  # ssl.SSLError is one
        names = ", ".join(filter(None, (url.ca or "of the system", url.cert, url.key)))
        raise StoreRefused(f"the certificates {names} cannot be used: {error}") from None
    return context


def _password(path: str) -> str:
    """Returns the content of the file, without the end of its line. Raises StoreRefused."""
    try:
        with open(path, "rb") as file:
            return file.read(_PASSWORD_BYTES_MAX).decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        raise StoreRefused(f"the password in {path} cannot be read: {error}") from None
