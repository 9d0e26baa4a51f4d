"""The report in a real browser: Debian's Chromium, through playwright."""

import pytest
from support import reports

from fadeout.experiments.report.page import page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page([reports.curve(), reports.grid(), reports.tabular()]), encoding="utf-8")
    return path


@pytest.fixture
def visit(browser, file):
    """Open the report; complaints and requests of the page fail the test."""
    opened, heard, asked = [], [], []

    def run(width=1200, *, fragment="", **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        opened.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: heard.append(message.text))
        tab.on("pageerror", lambda error: heard.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(file.as_uri() + fragment)
        return tab

    yield run
    for context in opened:
        context.close()
    assert heard == []
    assert {url.partition("#")[0] for url in asked} <= {file.as_uri(), "data:,"}


def column(tab, number, table=0):
    rows = tab.locator("table.sortable").nth(table).locator("tbody tr")
    return rows.evaluate_all(f"rows => rows.map(row => row.cells[{number}].dataset.value ?? '')")


def head(tab, title, table=0):
    return tab.locator("table.sortable").nth(table).get_by_role("button", name=title, exact=True)


def test_no_complaint_and_no_request(visit):
    tab = visit()
    assert tab.title() == "Fadeout: the experiments"
    assert tab.locator("figure svg").count() == 11


def test_tables_sort_by_click(visit):
    tab = visit()
    titles = tab.locator("table.sortable").first.locator("thead th")
    place = titles.all_inner_texts().index("after")
    head(tab, "after").click()
    assert titles.nth(place).get_attribute("aria-sort") == "ascending"
    values = column(tab, place)
    known = [float(value) for value in values if value]
    assert known == sorted(known)
    assert values[len(known) :] == ["", ""]  # what only the paper has comes last,
    head(tab, "after").click()
    assert titles.nth(place).get_attribute("aria-sort") == "descending"
    values = column(tab, place)
    assert [float(value) for value in values if value] == known[::-1]
    assert values[len(known) :] == ["", ""]  # in either order
    head(tab, "method").click()
    assert tab.locator("th[aria-sort]").count() == 1
    assert column(tab, 0) == sorted(column(tab, 0), key=str.lower)


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_tables_sort_by_keyboard(visit, key):
    tab = visit()
    tab.locator(".scroll").first.focus()
    tab.keyboard.press("Tab")  # the first heading
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "removed"
    tab.keyboard.press(key)
    tab.keyboard.press(key)
    values = [float(value) for value in column(tab, 1)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 0.999


_POINT = "figure svg a[aria-label='fadeout, 99.9 % removed: 73.50 ± 2.00 (3 seeds)']"


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
@pytest.mark.parametrize("start", ["table.sortable td a", _POINT, ".failed a"])
def test_links_open_their_configuration(visit, start, scripts):
    tab = visit(java_script_enabled=scripts)
    link = tab.locator(start).first
    target = tab.locator(f'[id="{link.get_attribute("href").removeprefix("#")}"]')
    assert not target.is_visible()
    link.click()
    target.wait_for(state="visible")
    assert target.locator("pre.json").inner_text().startswith("{")
    assert "abc1234" in target.inner_text()
    box = target.bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 900


def test_a_link_from_outside_and_the_same_link_again(visit):
    tab = visit()
    link = tab.locator("table.sortable td a").first
    name = link.get_attribute("href")
    tab = visit(fragment=name)
    block = tab.locator(f'details:has(> [id="{name.removeprefix("#")}"])')
    assert block.get_attribute("open") is not None
    block.locator("summary").click()
    assert block.get_attribute("open") is None
    tab.locator("table.sortable td a").first.click()
    assert block.get_attribute("open") is not None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_tables_but_not_the_page(visit, scheme):
    tab = visit(390, color_scheme=scheme)
    for all_open in (False, True):
        tab.evaluate("open => document.querySelectorAll('details').forEach(d => d.open = open)", all_open)
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.locator(".scroll").first.evaluate("box => box.scrollWidth > box.clientWidth")


def test_dark_and_light(visit):
    colours = {
        scheme: visit(color_scheme=scheme).evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('figure svg a use')).fill]"
        )
        for scheme in ("light", "dark")
    }
    assert colours["light"][0] == "rgb(246, 247, 249)"
    assert colours["dark"][0] == "rgb(15, 19, 25)"
    assert colours["light"][1] != colours["dark"][1]


def test_print_leaves_nothing_out(visit):
    tab = visit(672)  # a sheet of A4 within its margins
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth") == 672
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details:not([open])").count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth") == 672
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.locator("details[open]").count() == 0
    assert tab.pdf().startswith(b"%PDF")
