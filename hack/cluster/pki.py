"""Certificates and kubeconfigs of a local cluster: one authority, one client certificate for each identity."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """A certificate authority in a folder, and what it signs there."""

    def __init__(self, folder: Path, days: int = 30) -> None:
        self.folder = folder
        self.days = str(days)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "ca.crt").exists():
            subject = ("-subj", "/CN=inference-fleet-local-ca")
            self.openssl("req", "-x509", *CURVE, "-days", self.days, *subject, "-keyout", "ca.key", "-out", "ca.crt")

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def service_account_keys(self) -> None:
        """Writes sa.key and sa.pub, which sign and check service-account tokens."""
        self.openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "sa.key")
        self.openssl("ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")

    def certificate(self, name: str, subject: str, alternative_names: str = "") -> None:
        """Writes NAME.key and NAME.crt, good for clients and servers."""
        extensions = "extendedKeyUsage=clientAuth,serverAuth\n"
        if alternative_names:
            extensions += f"subjectAltName={alternative_names}\n"
        (self.folder / f"{name}.ext").write_text(extensions)
        self.openssl("req", *CURVE, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed_by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", self.days)
        self.openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.crt", "-extfile", f"{name}.ext")

    def kubeconfig(self, name: str, server: str) -> Path:
        """Writes NAME.conf: `server` as the identity NAME."""
        user: dict[str, object] = {
            "client-certificate": f"{self.folder}/{name}.crt",
            "client-key": f"{self.folder}/{name}.key",
        }
        return write_kubeconfig(self.folder / f"{name}.conf", server, self.folder / "ca.crt", user)


def write_kubeconfig(path: Path, server: str, authority: Path, user: dict[str, object]) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
        "clusters": [{"name": "local", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "local", "user": user}],
    }
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    path.chmod(0o600)
    return path
