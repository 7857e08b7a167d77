"""The names of certificates."""

import pytest

from tailrace.model.certificates import NAME_CHARS_MAX, certificate_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CN=Orders", "CN=Orders"),
        ("cn=orders", "CN=orders"),
        ("dns:Orders.Example", "DNS:orders.example"),
        ("URI:spiffe://example/a", "URI:spiffe://example/a"),
        ("EMAIL:ops@example.org", "email:ops@example.org"),
        ("IP:10.0.0.7", "IP:10.0.0.7"),
        ("sha256:" + ":".join(["AB"] * 32), "SHA256:" + "ab" * 32),
    ],
)
def test_a_name_as_it_is_compared(text, name):
    assert certificate_name(text) == name


@pytest.mark.parametrize(
    "text", ["", "orders", "O=orders", "CN=", "CN=a\n", "CN=a\0", "SHA256:ab", "SHA256:" + "g" * 64, "CN=" + "a" * 500]
)
def test_what_names_no_certificate(text):
    with pytest.raises(ValueError, match="certificate is"):
        certificate_name(text)
    assert len("CN=" + "a" * (NAME_CHARS_MAX - 3)) == NAME_CHARS_MAX
