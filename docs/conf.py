"""Builds the site: `make docs`. Sphinx reads the pages (MyST) and the docstrings (autodoc, napoleon)."""

from __future__ import annotations

import inspect
from typing import Any

import pyspark_tailrace
import tailrace
import tailrace.asyncio
import tailrace.blocking
import tailrace.indexes

project = "Tailrace"
author = "the Tailrace authors"
release = version = tailrace.__version__
html_title = f"Tailrace {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_copy_source = html_show_sourcelink = False
exclude_patterns = ["_build"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autoclass_content = "class"
default_role = "py:obj"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88

# Types of other projects that signatures name. Their documents are on the network, which a build does not use.
nitpick_ignore_regex = [
    ("py:.*", r"(collections\.abc|typing|types|datetime|os|pathlib|sqlite3|ssl|trio|pyarrow|pyspark)\..*"),
    ("py:.*", r"(Any|Callable|Iterable|Iterator|Mapping|Sequence|SupportsIndex|datetime)"),
    ("py:.*", r"(DataFrame|SparkSession|Column|StructType|DataSource\w*|abc\..*|enum\..*|optional|Path|StrPath)"),
    ("py:.*", r"(tuple|Mapping)\[.*|.*tailrace\.link\.address\.Address"),
    ("py:.*", r"(Protocol|Generic|NamedTuple|T|_T)"),
]
# Types of the SDK that a signature names and that programs do not use by name.
INTERNAL_TYPES = {
    "Block",
    "Host",
    "HashRange",
    "Items",
    "Batches",
    "Since",
    "FailoverLog",
    "Resolved",
    "RingChange",
    "ResumeReason",
    "Trace",
}
# Classes that a method makes: their constructors are no part of the interface.
MADE_BY_METHODS = {
    f"{module}.{name}"
    for module in ("tailrace", "tailrace.asyncio", "tailrace.blocking")
    for name in ("Client", "Feed", "Follower", "Mutations", "Stage", "Stream", "Writer")
}


def _public_names() -> dict[str, str]:
    """Returns the documented name of each public object, by the name of its module and its own."""
    found: dict[str, str] = {}
    for module in (tailrace, tailrace.asyncio, tailrace.blocking, tailrace.indexes, pyspark_tailrace):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{value.__module__}.{value.__qualname__}"] = f"{module.__name__}.{name}"
    return found


PUBLIC = _public_names()


def _resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Links a name as the code has it (`tailrace.trio.feed.Feed`, `Feed.put`) to the public one."""
    if node.get("refdomain") != "py":
        return None
    target = str(node.get("reftarget", ""))
    if target.rpartition(".")[2] in INTERNAL_TYPES:
        return content
    found = env.domains.python_domain.objects
    for private, public in PUBLIC.items():
        if target == private or target.startswith(f"{private}."):
            target = public + target.removeprefix(private)
            break
    modules = [node.get("py:module") or "tailrace", "tailrace", "tailrace.indexes"]
    for name in (target, *(f"{module}.{target}" for module in modules)):
        if name in found:
            return env.domains.python_domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)
    return None


def _skip(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of named tuples and slots, which the docstring of their class lists as attributes."""
    return True if type(value).__name__ in {"_tuplegetter", "member_descriptor"} else None


def _signature(app: Any, what: str, name: str, value: Any, options: Any, signature: str, returns: str) -> Any:
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    return ("", None) if name in MADE_BY_METHODS or is_error else None


def setup(app: Any) -> None:
    """Connects the functions above."""
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _signature)
