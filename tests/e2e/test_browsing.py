"""The scripted browser itself: it must notice what it is there to notice."""

import pytest

pytestmark = pytest.mark.browser
PAGE = """<!doctype html><html lang="en"><head><title>Try</title><style>
:root { color: rgb(1, 2, 3) }
@media (prefers-color-scheme: dark) { :root { color: rgb(4, 5, 6) } }
@media (prefers-reduced-motion: reduce) { :root { opacity: 0.5 } }
@media print { :root { background: rgb(7, 8, 9) } }
</style></head><body><p id="said">still</p><img src="absent.png" alt="">
<script>
document.getElementById("said").textContent = "moved";
console.error("oh");
setTimeout(() => { throw new Error("uncaught"); });
</script></body></html>"""


@pytest.fixture
def page_file(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(PAGE)
    return path


def root_style(page, name) -> str:
    return page.evaluate(f"getComputedStyle(document.documentElement).{name}")


def test_messages_errors_and_requests_are_recorded(open_page, page_file) -> None:
    page = open_page(page_file)
    page.wait_for_timeout(50)
    assert page.inner_text("#said") == "moved"
    assert "error: oh" in page.console
    assert page.errors == ["uncaught"]
    assert page.requests == [page_file.as_uri(), (page_file.parent / "absent.png").as_uri()]


def test_each_page_stands_alone(open_page, page_file) -> None:
    one, other = open_page(page_file), open_page(page_file)
    one.evaluate("localStorage.setItem('kept', 'yes')")
    assert other.evaluate("localStorage.getItem('kept')") is None
    other.wait_for_timeout(50)
    assert other.errors == ["uncaught"]


def test_options_reach_the_page(open_page, page_file) -> None:
    plain = open_page(page_file)
    assert root_style(plain, "color") == "rgb(1, 2, 3)"
    assert root_style(plain, "opacity") == "1"
    other = open_page(page_file, dark=True, width=400, still=True)
    assert root_style(other, "color") == "rgb(4, 5, 6)"
    assert root_style(other, "opacity") == "0.5"
    assert other.evaluate("innerWidth") == 400
    assert root_style(open_page(page_file, printing=True), "backgroundColor") == "rgb(7, 8, 9)"


def test_a_page_without_javascript(open_page, page_file) -> None:
    page = open_page(page_file, javascript=False)
    assert page.inner_text("#said") == "still"
    assert "error: oh" not in page.console
