"""Certificates for tests, made once for each authority, in files as an operator has them."""

from __future__ import annotations

import datetime
import ssl

import trustme

from tailrace.tls import TlsFiles, client_context
from tailrace_server.config import TlsConfig

HOSTS = ("127.0.0.1", "localhost")


class Authority:
    """An authority, with its file and those of the certificates that it has signed."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.path = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, name, *hosts, expired=False, early=False):
        """The path of a file with a certificate and its key. ``early``: it is valid from tomorrow on."""
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        ends, begins = now - day if expired else None, now + day if early else None
        issued = self._ca.issue_cert(*(hosts or HOSTS), common_name=name, not_before=begins, not_after=ends)
        path = self.folder / f"{name}.pem"
        path.unlink(missing_ok=True)
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def node(self, *hosts, name="node", **more):
        """The configuration of a node with a certificate for ``hosts``."""
        return TlsConfig(self.issue(name, *hosts), **more)

    def client(self, cert=""):
        """The context of a client that trusts this authority, perhaps with a certificate."""
        return client_context(TlsFiles(self.path, cert))

    def listening(self):
        """The context of a plain TLS server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue("listening"))
        context.num_tickets = 0
        return context
