"""What makes a site of pages that are written for a Git host: README and others beside docs/ are
pages too, files that pages link to are shown, and headings have the anchors of such hosts."""

import os
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pages  # noqa: E402

# Pages of the site by where they stand in the tree; beside them all of docs/.
BESIDE_DOCS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LANGUAGES = {".cpp": "cpp", ".h": "cpp", ".c": "c", ".py": "python", ".toml": "toml"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMENT = re.compile(r"^ *<!--.*?-->\n", re.DOTALL | re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:|^#")

UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
# Code of 100 columns and most tables fit beside both navigations. On phones, pictures keep a width
# at which their text can be read, and scroll. The rest is what axe-core found: links and comments
# without contrast, tabs, footer.
STYLE = """.md-grid { max-width: 71rem; }
.md-typeset table:not([class]) :is(th, td) { min-width: 0; padding: .6em .9em; }
.md-typeset code { word-break: normal; overflow-wrap: break-word; }
.md-typeset table code { white-space: nowrap; }
.md-typeset :is(p, li, td) a:not(.headerlink) { text-decoration: underline; }
.md-tabs__link { opacity: 1; }
.md-search-result__meta { color: var(--md-default-fg-color); }
.md-copyright { color: #b0b0b0; }
[data-md-color-scheme="default"] {
  --md-code-hl-comment-color: #595959; --md-code-hl-operator-color: #595959;
  --md-code-hl-variable-color: #595959;
}
[data-md-color-scheme="slate"] {
  --md-code-hl-comment-color: #b4b7c3; --md-code-hl-operator-color: #b4b7c3;
  --md-code-hl-number-color: #f08a7e; --md-code-hl-constant-color: #a89bea;
}
[data-md-color-scheme="default"][data-md-color-primary] { --md-accent-fg-color: #3f51d6; }
[data-md-color-scheme="slate"][data-md-color-primary] {
  --md-typeset-a-color: #7da6f5; --md-accent-fg-color: #93a4ff;
}
@media screen and (max-width: 44.9375em) {
  .md-typeset td:not(:first-child) code { white-space: normal; }
  .md-typeset p:has(> img:only-child) { overflow-x: auto; }
  .md-typeset p > img:only-child { max-width: none; width: 34rem; }
}
"""
# Wide tables, pictures and code scroll; a keyboard reaches them only if they take the focus. On
# touch screens the theme takes the focus from code again. A button that copies is no landmark.
SCRIPT = """const keep = new MutationObserver((changes) => {
  for (const { target } of changes)
    if (target.tabIndex < 0 && target.scrollWidth > target.clientWidth) target.tabIndex = 0;
});
const pictures = new ResizeObserver((changes) => {
  for (const { target } of changes)
    target.tabIndex = target.scrollWidth > target.clientWidth ? 0 : -1;
});
document$.subscribe(() => setTimeout(() => {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap")) wide.tabIndex = 0;
  for (const picture of document.querySelectorAll(".md-typeset p > img:only-child"))
    pictures.observe(picture.parentElement);
  for (const copy of document.querySelectorAll(".md-code__nav")) copy.setAttribute("role", "none");
  for (const code of document.querySelectorAll(".md-typeset pre > code")) {
    code.tabIndex = 0;
    keep.observe(code, { attributeFilter: ["tabindex"] });
  }
}));
"""
PYTHON = {
    "segfuse": (
        "Model train study evaluate models PretrainedModel Prediction Segment ScoredSegments"
        " LiveStream LiveSegment compile Compiled CacheInfo grad value_and_grad scan Fusion Program"
        " Value Size set_threads get_threads Error UsageError DataError DeviceError InternalError"
    ),
    "segfuse.crf": (
        "SemiCRF Constraints Segmentations SegmentationLists Gradients Posteriors sample_prior"
        " duration_scores duration_gradient duration_parameters duration_buckets"
    ),
    "segfuse.torch": "",
    "segfuse.torch.allocator": "",
    "segfuse.jax": "",
}
PYTHON_HEAD = """# Python reference

Made from the docstrings. [python.md](python.md) explains the package; each method of `SemiCRF` is
also a function of `segfuse`. The operations of `segfuse.ops` are in [operations.md](operations.md).
"""


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, separator: pages.slug(text)
    return config


def _site_place(path):
    """Where the site has a file of the tree."""
    if path in BESIDE_DOCS:
        return BESIDE_DOCS[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path.rstrip('/')}.md"


def _tree_place(place):
    """The file of the tree behind a page of the site."""
    for path, name in BESIDE_DOCS.items():
        if name == place:
            return path
    return f"docs/{place}"


def _target(path, link):
    """(file of the tree, anchor) that a link of the page at `path` leads to."""
    name, _, anchor = link.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name)), anchor


def _source_page(path):
    """A file of the tree as a page, or a folder's list of files."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(child.name for child in place.iterdir() if child.is_file())
        rows = [f"- [{name}]({place.name}/{name}.md)" for name in names]
        return f"{UNSEARCHED}# {path}/\n\n" + "\n".join(rows) + "\n"
    language = LANGUAGES.get(place.suffix, "text")
    return f"{UNSEARCHED}# {path}\n\n```{language}\n{place.read_text()}```\n"


def _docs():
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


def _linked_files():
    """Files and folders of the tree that pages link to and that are no pages themselves."""
    found, texts = set(), [*BESIDE_DOCS, *_docs()]
    for path in texts:
        for _, link in pages.links_of((ROOT / path).read_text()):
            target = path if ELSEWHERE.match(link) else _target(path, link)[0]
            if target not in BESIDE_DOCS and not target.startswith("docs/"):
                found.add(target)
                if (ROOT / target).is_dir():
                    found |= {
                        f"{target}/{p.name}" for p in (ROOT / target).iterdir() if p.is_file()
                    }
    return sorted(found)


def _python_reference():
    parts = [PYTHON_HEAD]
    for module, names in PYTHON.items():
        parts.append(f"## {module}\n")
        if names:
            parts += [f"::: {module}.{name}\n" for name in names.split()]
        else:
            parts.append(f"::: {module}\n    options: {{show_root_heading: false}}\n")
    return "\n".join(parts)


def on_files(files, config):
    for path, name in BESIDE_DOCS.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    for path in _linked_files():
        files.append(File.generated(config, _site_place(path), content=_source_page(path)))
    files.append(File.generated(config, "site.css", content=STYLE))
    files.append(File.generated(config, "site.js", content=SCRIPT))
    files.append(File.generated(config, "python_reference.md", content=_python_reference()))
    return files


def on_page_markdown(markdown, page, config, files):
    place = page.file.src_uri
    if place.startswith("source/") or place == "python_reference.md":
        return markdown
    path = _tree_place(place)
    if place.startswith("decisions/"):
        page.meta.setdefault("search", {"boost": 0.3})  # what holds now is on other pages

    def moved(match):
        link = match.group(1)
        if ELSEWHERE.match(link):
            return match.group(0)
        target, anchor = _target(path, link)
        there = os.path.relpath(_site_place(target), posixpath.dirname(place) or ".")
        return f"]({there}{'#' + anchor if anchor else ''})"

    return LINK.sub(moved, _deeper_items(COMMENT.sub("", markdown)))


def on_post_page(output, page, config):
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def on_post_template(output, template_name, config):
    return on_post_page(output, None, config) if template_name == "404.html" else output


def _deeper_items(markdown):
    """What belongs to a list item behind a blank line is indented by four, as this parser wants."""
    out, item, blank = [], False, False
    for line in markdown.split("\n"):
        if re.match(r"(?:[-*+]|\d+\.) ", line):
            item, blank = True, False
        elif line and not line.startswith(" "):
            item = False
        elif not line:
            blank = True
        out.append("  " + line if item and blank and line.startswith("  ") else line)
    return "\n".join(out)
