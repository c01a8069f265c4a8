"""Opens the HTML report of demo runs in headless Chromium. Fails on any browser error, any request of the page,
any missing content, and any table or text that is wider than the page.

usage: check.py TOKENGAP FOLDER BROWSER     needs the package playwright
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

TOKENGAP, FOLDER, BROWSER = sys.argv[1], Path(sys.argv[2]).resolve(), shutil.which(sys.argv[3])
# Scenarios to run, and the expected content of their pages.
PAGES = {
    "race": ["CRITICAL", "dropped-chunks", "fixed in 0.5.10", "Worst requests", "proven", "Limits and cost of the observation"],
    "backlog": ["CRITICAL", "first-token-gap", "Backlog: frames sent but not yet received", "How long tokens waited", "UTC"],
    "router": ["detokenizer->worker", "Queue wait on scheduler->detokenizer-router", "Tokens per second"],
}
# This page has many hops. Its rids are made long: no text may widen a page.
LONG_RIDS = "router"
# Screenshot names, with the display settings of each. A sheet of A4 has a width of 717 px between its margins.
VARIANTS = {
    "light": ("screen", "light", 1200),
    "dark": ("screen", "dark", 800),
    "narrow": ("screen", "light", 400),
    "paper": ("print", "light", 717),
}
# Headings of the sections with a table that is wider than its page.
WIDE_TABLES = """[...document.querySelectorAll('.scroll')].filter(table => table.scrollWidth > table.clientWidth)
    .map(table => table.closest('section').querySelector('h2').textContent)"""

# Number of main figures in the last row of them.
FIGURES_IN_LAST_ROW = """(tops => tops.filter(top => top === tops.at(-1)).length)(
    [...document.querySelectorAll('.facts div')].map(card => card.getBoundingClientRect().top))"""


def with_long_rids(part):
    """The report with rids of 160 characters.

    >>> with_long_rids({"rid": "ab", "inner": [{"rid": None}]}) == {"rid": "ab" * 80, "inner": [{"rid": None}]}
    True
    """
    if isinstance(part, dict):
        return {key: (value * 160)[:160] if key == "rid" and value else with_long_rids(value) for key, value in part.items()}
    return [with_long_rids(value) for value in part] if isinstance(part, list) else part


def make(scenario):
    """Runs a scenario; returns its page."""
    report, page = FOLDER / f"{scenario}.json", FOLDER / f"{scenario}.html"
    with open(report, "w") as out:
        demo = [TOKENGAP, "demo", "--json", "--duration", "12s", "--scenario", scenario]
        subprocess.run(demo, stdout=out, check=True)
    if scenario == LONG_RIDS:
        report.write_text(json.dumps(with_long_rids(json.loads(report.read_text()))))
    subprocess.run([TOKENGAP, "report", report, "--force", "--format", "html", "--output", page], check=True)
    return page.as_uri()


def open_page(browser, url, scenario, name):
    """Opens the page and takes a screenshot; returns the open page."""
    media, scheme, width = VARIANTS[name]
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.emulate_media(media=media, color_scheme=scheme)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url, wait_until="load")
    text = page.inner_text("body")
    page.screenshot(path=FOLDER / f"{scenario}-{name}.png", full_page=True)
    # Wait for events after the page has loaded.
    page.wait_for_timeout(300)

    def expect(holds, message):
        if not holds:
            sys.exit(f"{scenario}, {name}: {message}")

    expect(not complaints, f"browser errors: {complaints}")
    expect(requests == [url], f"the page requests {requests}")
    expect(page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than its window")
    wide = page.evaluate(WIDE_TABLES)
    expect(not wide, f"tables are wider than the page: {wide}")
    # On a narrow page a figure fills its row.
    expect(width < 800 or page.evaluate(FIGURES_IN_LAST_ROW) > 1, "a figure is alone in its row")
    for part in PAGES[scenario]:
        expect(part in text, f"the page does not contain {part!r}")
    return page


def main():
    if not BROWSER:
        sys.exit(f"cannot find {sys.argv[3]}: install it (Debian: apt-get install chromium)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, chromium_sandbox=False)
        for scenario in PAGES:
            url = make(scenario)
            pages = [open_page(browser, url, scenario, name) for name in VARIANTS]
            paper = pages[-1].pdf(path=FOLDER / f"{scenario}.pdf", prefer_css_page_size=True)
            if not paper.startswith(b"%PDF-"):
                sys.exit(f"{scenario}: the page cannot be printed")
            print(f"{scenario}: no errors, no requests, all content present")
        browser.close()
    print(f"pages and screenshots are in {FOLDER}")


if __name__ == "__main__":
    main()
