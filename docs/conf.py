"""The documentation as a site: `make docs`, or `sphinx-build -W -n -c docs . build/docs`.

The source folder is the root of the repository. So every relative link means the same in the site
and on the repository's host, README.md and SECURITY.md are pages too, and a link to a file that is
not a page (source, test, study) leads to a listing of that file, made here. No network is needed.
"""

from __future__ import annotations

import inspect
import os
import sys
from html import escape
from importlib import import_module
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.ext import autosummary

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

project = "Auto-FedAvg"
author = "the Auto-FedAvg contributors"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
include_patterns = ["*.md", "docs/**.md", "bench/*.md", "examples/*/*.md", "results/*.md"]
exclude_patterns = [".*", "build", "dist", "reports", "results/*/*", "runs", "src", "tests"]

myst_heading_anchors = 4
default_role = "code"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autosummary_generate = False  # the reference is one page, without stubs
autosummary.WELL_KNOWN_ABBREVIATIONS += ("Eq.",)  # does not end the first sentence
python_maximum_signature_line_length = 88
# Types in signatures come from other libraries, whose inventories would need the network.
nitpick_ignore_regex = [("py:class", ".*"), ("py:obj", ".*")]

html_theme = "furo"
html_title = "Auto-FedAvg"
html_show_sphinx = False
html_copy_source = False

LISTINGS = "files"
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}


def add_public_names(_app, _docname, source):
    """Puts the names of `autofedavg.__all__` where the reference asks for them."""
    names = import_module("autofedavg").__all__ if "@public@" in source[0] else ()
    source[0] = source[0].replace("@public@", "\n   ".join(names))


def leave_out(_app, _what, name, obj, *_):
    """Leaves out what is public for other modules only, and what comes from pydantic."""
    helper = inspect.isfunction(obj) and obj.__module__ == "autofedavg.core.errors"
    return True if helper or name == "model_config" else None


def add_settings(_app, _what, _name, obj, _options, lines):
    """Lists the settings of a class with their defaults."""
    for setting, field in getattr(obj, "model_fields", {}).items():
        if field.description:
            default = getattr(obj(), setting)
            lines.append(f"* **{setting}** = ``{default!r}``: {field.description}")


def shorten(_app, _what, _name, obj, *_):
    """A class of settings takes them all by name; they are listed below it."""
    return ("(**settings)", None) if hasattr(obj, "model_fields") else None


def list_files(app, doctree):
    """Turns links to files that are no pages into links to their listings."""
    folder = Path(app.env.docname).parent
    for link in list(doctree.findall(addnodes.download_reference)):
        path = os.path.normpath(folder / link["reftarget"])
        app.env.autofedavg_files.setdefault(app.env.docname, set()).add(path)
        target = os.path.relpath(f"{LISTINGS}/{path}.html", folder)
        link.replace_self(nodes.reference("", "", *link.children, refuri=target, internal=True))


def begin(app):
    """Remembers, with the environment, which pages link to which files."""
    if not hasattr(app.env, "autofedavg_files"):
        app.env.autofedavg_files = {}


def listings(app):
    """A page for every file that a page links to."""
    for path in sorted(set().union(*app.env.autofedavg_files.values())):
        text = (Path(app.srcdir) / path).read_text(encoding="utf-8")
        language = LANGUAGES.get(Path(path).suffix, "text")
        code = app.builder.highlighter.highlight_block(text, language)
        body = f"<h1>{escape(path)}</h1>{code}"
        yield f"{LISTINGS}/{path}", {"title": path, "body": body}, "page.html"


def write_entrance(app, error):
    """Leads from the top of the site to the first page."""
    if not error and app.builder.name == "html":
        to = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        text = f'<!doctype html><title>{project}</title>{to}<a href="{root_doc}.html">{project}</a>'
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", begin)
    app.connect("source-read", add_public_names)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", add_settings)
    app.connect("doctree-read", list_files, priority=100)  # before Sphinx collects downloads
    app.connect("html-collect-pages", listings)
    app.connect("build-finished", write_entrance)
    return {"parallel_read_safe": False}
