"""The site in a real browser: it can be read, at a desk and on a phone, searched, and used by keyboard."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
PAGES = [
    "index.html",
    "how-to/lightning.html",
    "concepts/fade.html",
    "reference/structures.html",
    "results/index.html",
]

# Every text that is seen, and its contrast with what is behind it, as WCAG 2 has it
CONTRASTS = """() => {
  const numbers = (colour) => [...colour.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3]));
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const seen = { checkOpacity: true, checkVisibilityCSS: true };
  return [...document.querySelectorAll("body *")]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .filter((e) => e.checkVisibility(seen))
    .map((e) => {
      const style = getComputedStyle(e), back = ground(e);
      const front = over(numbers(e instanceof SVGElement ? style.fill : style.color), back);
      const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
      const large = parseFloat(style.fontSize) >= 24;
      const what = `${e.tagName} ${style.color} ${e.textContent.slice(0, 30)}`;
      return [(high + 0.05) / (low + 0.05), large ? 3 : 4.5, what];
    });
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=400)
    return folder


@pytest.fixture
def visit(browser, site):
    opened = []

    def go(page, width=1280, **options):
        opened.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        tab = opened[-1].new_page()
        tab.goto(f"file://{site / page}")
        return tab

    yield go
    for context in opened:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_text_stands_out(visit, page, scheme):
    found = visit(page, color_scheme=scheme).evaluate(CONTRASTS)
    assert len(found) > 50
    assert [(round(ratio, 2), what) for ratio, least, what in found if ratio < least] == []


@pytest.mark.parametrize("page", PAGES)
def test_fits_a_phone(visit, page):
    wide, room = visit(page, width=390, is_mobile=True).evaluate(
        "[document.documentElement.scrollWidth, innerWidth]"
    )
    assert wide <= room


def test_images_have_a_text_instead(visit, site):
    missing = {}
    for page in PAGES:
        found = visit(page).evaluate(
            '[...document.querySelectorAll(\'.md-content img:not([alt]), .md-content img[alt=""], '
            ".md-content svg[role=img]:not([aria-label])')].map((e) => e.outerHTML.slice(0, 80))"
        )
        missing |= {page: found} if found else {}
    assert missing == {}


def test_the_search_finds_channels(visit):
    page = visit("index.html")
    page.keyboard.press("/")
    page.keyboard.type("Channels", delay=20)
    page.wait_for_selector(".md-search-result__item a", timeout=20_000)
    found = page.evaluate(
        "[...document.querySelectorAll('.md-search-result__item a')].map((a) => a.getAttribute('href'))"
    )
    assert any("concepts/channels.html" in link for link in found)
    assert any("reference/structures.html" in link for link in found)


def test_the_figure_by_keyboard(visit):
    page = visit("concepts/fade.html")
    said = page.locator(".fading output")
    for _ in range(60):  # to the slider, without a mouse
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "range":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    before = said.text_content()
    page.keyboard.press("ArrowRight")
    assert said.text_content() != before
    page.keyboard.press("End")
    assert said.text_content().startswith("100 % of the training")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Play"
    page.keyboard.press("Space")
    page.wait_for_function("!document.querySelector('.fading output').textContent.startsWith('100 %')")


def test_the_keyboard_is_seen_everywhere(visit):
    page = visit("index.html")
    for _ in range(12):
        page.keyboard.press("Tab")
        where, outlines = page.evaluate(
            """(() => {
              const e = document.activeElement, two = [e, e.nextElementSibling].filter(Boolean);
              return [e.outerHTML.slice(0, 80), two.map((one) => getComputedStyle(one).outlineStyle)];
            })()"""
        )
        assert {*outlines} != {"none"}, where
