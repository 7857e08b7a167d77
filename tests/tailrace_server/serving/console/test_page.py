"""The console's page in a real Chromium, against real nodes under load."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
import trio
from tests.processes.node import HOST, NodeProcess
from tests.tailrace_server.serving.console.browser import (
    INSTALL,
    IS_THERE,
    PHONE,
    Browser,
    busy,
    in_browser,
    taking_nothing,
)
from tests.tailrace_server.serving.console.contrast import POOR_TEXTS

import tailrace
from tailrace.testing.ports import free_port, free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_THERE, reason=f"needs chromium and playwright: {INSTALL}"),
]
SCREENS = ["#/", "#/feeds", "#/feeds/orders", "#/feeds/orders/0", "#/consumers", "#/tail/orders", "#/keys/orders"]
SCREENS += ["#/resume/orders"]
KEYS_ARE_FILTERED = """() => {
  const keys = [...document.querySelectorAll(".tail td[data-name=key]")].map((cell) => cell.textContent);
  return keys.length > 0 && keys.every((key) => key.startsWith("key-77"));
}"""
# Of the element with the focus. An element without an outline shows no focus.
FOCUSED = """() => {
  const element = document.activeElement;
  const isSeen = element === document.body || getComputedStyle(element).outlineStyle !== "none";
  return { html: element.outerHTML, isSeen };
}"""
MUTATIONS = "[...document.querySelectorAll('dt')].find((dt) => dt.innerText === 'mutations').nextSibling.innerText"
LEVEL = "[...document.querySelectorAll('dt')].find((dt) => dt.innerText === 'level of writes').nextSibling.innerText"
# The page hears of a new address first, so it has just begun to connect.
LEAVE_A_TAIL_THAT_CONNECTS = """() => {
  addEventListener("hashchange", () => { location.hash = "#/feeds"; }, { once: true });
  location.hash = "#/tail/orders";
}"""
CONTROLS = "header a, header button, main a, main input, main select, main th button"


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A node with a feed that is written to and read."""
    node = NodeProcess(tmp_path_factory.mktemp("node"), http=f"{HOST}:{free_port()}")
    node.start()
    with busy(node.url):
        yield node
    node.stop()


@pytest.fixture
def own_node(tmp_path):
    """Starts a node of the test's own, with these options."""
    nodes = []

    def start(*options):
        node = NodeProcess(tmp_path / "node", http=f"{HOST}:{free_port()}", options=options, log_path=tmp_path / "log")
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.end_at_once()


def address(node, screen="#/"):
    return f"http://{node.http}/{screen}"


def until(page, expression, argument=None):
    page.wait_for_function(expression, arg=argument)


def settled(page):
    """Waits until the screen has its data."""
    until(page, "() => !document.querySelector('main').textContent.includes('Loading')")


@in_browser
def test_every_screen_works_without_errors_or_other_hosts_and_fits_a_phone(browser, node):
    with browser.open(viewport=PHONE) as visit:
        for screen in SCREENS:
            visit.page.goto(address(node, screen))
            settled(visit.page)
            assert visit.page.locator("h1").count() == 1, screen
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], screen
        assert visit.errors == []
        assert visit.hosts == {node.http}


@in_browser
def test_a_tail_may_be_left_while_it_connects(browser, node):
    with browser.open() as visit:
        for _ in range(10):
            visit.page.goto(address(node, "#/consumers"))
            visit.page.get_by_role("heading", name="Consumers").wait_for()
            with visit.page.expect_websocket(lambda socket: "/tail?" in socket.url):
                visit.page.evaluate(LEAVE_A_TAIL_THAT_CONNECTS)
            visit.page.get_by_role("heading", name="Feeds").wait_for()
        assert visit.errors == []


@in_browser
def test_texts_have_the_contrast_of_wcag_aa_in_both_themes(browser, node):
    for scheme in ("light", "dark"):
        with browser.open(color_scheme=scheme) as visit:
            for screen in SCREENS:
                visit.page.goto(address(node, screen))
                settled(visit.page)
                assert visit.page.evaluate(POOR_TEXTS) == [], f"{screen} in {scheme}"


@in_browser
def test_the_overview_is_live_and_leads_to_a_partition_and_a_consumer(browser, node):
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node))
        until(page, "() => /\\d+\\/s/.test(document.querySelector('main').textContent)")
        before = page.evaluate(MUTATIONS)
        until(page, f"(before) => {MUTATIONS} !== before", before)
        page.get_by_role("link", name="orders").first.click()
        page.get_by_role("link", name="3", exact=True).click()
        page.get_by_text("History: the failover log").wait_for()
        assert page.get_by_role("img").count() == 2
        page.get_by_role("link", name="Consumers", exact=True).click()
        page.get_by_role("searchbox").fill("index")
        page.get_by_role("link", name="index").click()
        page.get_by_role("heading", name="index").wait_for()
        assert visit.errors == []


@in_browser
def test_the_tail_shows_what_is_written_and_pauses(browser, node):
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node, "#/tail/orders"))
        page.get_by_text(re.compile(r"key-\d+")).first.wait_for()
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("paused").wait_for()
        seen = page.locator(".tail tbody tr").first.text_content()
        page.get_by_role("button", name="Go on").click()
        until(page, "(seen) => document.querySelector('.tail tbody tr').textContent !== seen", seen)
        page.get_by_label("Keys that begin with").fill("key-77")
        page.get_by_role("button", name="Begin").click()
        until(page, KEYS_ARE_FILTERED)
        page.get_by_role("button", name="Pause").click()
        page.get_by_label("Show rows with").fill("no row has this")
        page.get_by_text("No row has this text.").wait_for()
        page.get_by_label("Show rows with").fill("KEY-77")
        assert page.locator(".tail tbody tr").count() > 0
        assert visit.errors == []


@in_browser
def test_a_stuck_consumer_is_as_red_as_the_verdict_and_a_link_from_it(browser, own_node):
    node = own_node("--set", "limits.slow_after_s=0.5")
    with taking_nothing(node.url), browser.open() as visit:
        page = visit.page
        page.goto(address(node))
        page.locator("#verdict.stuck [role=status]", has_text="Something is stuck").wait_for()
        row = page.locator("section", has_text="What is wrong").locator("tbody tr")
        assert row.locator(".state.bad").text_content() == "stuck"
        row.get_by_role("link").click()
        page.get_by_role("heading", name="Consumer idler").wait_for()
        assert visit.errors == []


@in_browser
def test_a_key_is_looked_up_and_a_new_start_previewed(browser, node):
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node, "#/keys/orders"))
        page.get_by_label("Key").first.fill("key-7")
        page.get_by_role("button", name="Look up").click()
        page.get_by_text(re.compile(r'"number": \d+')).first.wait_for()
        page.goto(address(node, "#/resume/orders"))
        page.get_by_label("Begin at").select_option("beginning")
        page.get_by_role("button", name="Preview").click()
        positions = page.locator("pre").first.text_content()
        assert positions.startswith("trp1.")
        page.locator("textarea").first.fill(positions)
        page.get_by_label("Key prefix").fill("key-")
        page.get_by_role("button", name="Explain").click()
        page.get_by_role("heading", name="If it resumes there").wait_for()
        assert visit.errors == []


async def with_token(url, admin, call, name):
    async with tailrace.connect(url, token=admin) as client:
        if call == "create_token":
            if not await client.feeds():
                await client.create_feed("orders")
            return await client.create_token(name, role="read")
        return await client.revoke_token(name)


async def put_with_token(url, admin):
    async with tailrace.connect(url, token=admin) as client, client.feed("orders").writer() as writer:
        await writer.put(b"after", b"{}")


async def put_and_delete(url):
    async with tailrace.connect(url) as client:
        feed = await client.create_feed("short")
        async with feed.writer() as writer:
            await writer.put(b"gone", b"{}")
            await writer.delete(b"gone")


async def set_level(url, level):
    async with tailrace.connect(url) as client:
        if any(feed.name == "leveled" for feed in await client.feeds()):
            await client.set_feed("leveled", level=level)
        else:
            await client.create_feed("leveled", level=level)


@in_browser
def test_the_level_of_a_feed_is_shown_and_follows_its_setting(browser, own_node):
    node = own_node()
    trio.run(set_level, node.url, None)
    with browser.open() as visit:
        visit.page.goto(address(node, "#/feeds/leveled"))
        settled(visit.page)
        assert visit.page.evaluate(LEVEL) == "disk, by default"
        for level, shown in (
            ("memory", "memory, the feed's own"),
            ("disk", "disk, the feed's own"),
            ("default", "disk, by default"),
        ):
            trio.run(set_level, node.url, level)
            until(visit.page, f"(shown) => {LEVEL} === shown", shown)
        assert visit.errors == []


def test_a_deleted_key_is_called_deleted_and_a_key_that_never_was_has_no_row(browser, node):
    trio.run(put_and_delete, node.url)
    browser.do(look_up_both, browser, node)


def look_up_both(browser, node):
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node, "#/keys/short"))
        for key, answer in (("gone", "The key is deleted."), ("never", "The feed has no row of this key.")):
            page.get_by_label("Key").first.fill(key)
            page.get_by_role("button", name="Look up").click()
            page.get_by_role("heading", name=f"{key} in partition").wait_for()
            assert page.locator("main section p").first.text_content() == answer
        assert visit.errors == []


@in_browser
def test_the_keyboard_reaches_every_control_and_has_shortcuts(browser, node):
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node))
        settled(page)
        page.keyboard.press("3")
        page.get_by_role("heading", name="Consumers").wait_for()
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.tagName") == "INPUT"
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="hidden")
        theme = page.evaluate("document.documentElement.dataset.theme")
        page.keyboard.press("d")
        assert page.evaluate("document.documentElement.dataset.theme") != theme
        page.goto(address(node, "#/feeds/orders"))
        settled(page)
        controls = page.evaluate(f"document.querySelectorAll('{CONTROLS}').length")
        focused = []
        for _ in range(controls + 5):
            page.keyboard.press("Tab")
            focused.append(page.evaluate(FOCUSED))
        assert [one["html"] for one in focused if not one["isSeen"]] == []
        missed = page.evaluate(
            f"(reached) => [...document.querySelectorAll('{CONTROLS}')]"
            ".map((one) => one.outerHTML).filter((one) => !reached.includes(one))",
            [one["html"] for one in focused],
        )
        assert missed == []


@in_browser
def test_the_theme_that_was_chosen_is_there_before_the_first_paint(browser, node):
    with browser.open(color_scheme="light") as visit:
        page = visit.page
        page.goto(address(node))
        page.get_by_role("button", name="Dark").click()
        page.route("**/main.js", lambda route: route.abort())
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@in_browser
def test_a_named_consumer_that_has_gone_stays_as_away_and_is_found_by_its_state(browser, node):
    with busy(node.url, "brief"):
        pass
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node, "#/consumers"))
        page.get_by_label("State").select_option("away")
        row = page.locator("tr.bad", has_text="brief")
        row.wait_for()
        row.get_by_role("link", name="index").click()
        page.get_by_role("heading", name="Consumer index").wait_for()
        assert visit.errors == []


@in_browser
def test_lists_are_paged(browser, node):
    with busy(node.url, "wide", 150), browser.open() as visit:
        page = visit.page
        for screen in ("#/feeds/wide", "#/consumers"):
            page.goto(address(node, screen))
            if screen == "#/consumers":
                row = page.locator("tr", has_text="wide")
                row.get_by_role("link", name="index").click()
            page.get_by_text("1 to 128 of 150").wait_for()
            page.get_by_role("button", name="Next").click()
            page.get_by_text("129 to 150 of 150").wait_for()
            assert page.locator("tbody tr").count() == 22
        assert visit.errors == []


@in_browser
def test_a_killed_node_turns_red_with_its_reason_and_comes_back_by_itself(browser, own_node):
    node = own_node()
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node))
        settled(page)
        node.kill()
        page.get_by_role("alert").get_by_text(re.compile("No connection .* for .* s: .*does not answer")).wait_for()
        node.start()
        until(page, "() => document.getElementById('banner').textContent === ''")
        page.get_by_text("live", exact=True).wait_for()


@in_browser
def test_a_wrong_token_is_refused_and_a_right_one_stays_out_of_urls(browser, own_node):
    node = own_node("--auth")
    token = (node.data / "admin.token").read_text().strip()
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node))
        page.get_by_role("dialog").get_by_label("Token").first.fill("wrong")
        page.keyboard.press("Enter")
        page.locator("#why.error").wait_for()
        page.get_by_role("dialog").get_by_label("Token").first.fill(token)
        page.keyboard.press("Enter")
        page.locator("#verdict").wait_for()
        assert not [url for url in visit.urls if token in url]
        assert page.evaluate("Object.keys(localStorage)") == []
        assert page.evaluate("Object.values(sessionStorage)") == [token]


@in_browser
def test_a_token_revoked_under_an_open_page_is_asked_for_again(browser, own_node):
    node = own_node("--auth")
    admin = (node.data / "admin.token").read_text().strip()
    first = trio.run(with_token, node.url, admin, "create_token", "first")
    with browser.open() as visit:
        page = visit.page
        page.goto(address(node))
        page.get_by_role("dialog").get_by_label("Token").first.fill(first)
        page.keyboard.press("Enter")
        page.locator("#verdict").wait_for()
        page.goto(address(node, "#/tail/orders"))
        page.get_by_text("live", exact=True).nth(1).wait_for()
        trio.run(with_token, node.url, admin, "revoke_token", "first")
        page.locator("#why.error").wait_for()
        second = trio.run(with_token, node.url, admin, "create_token", "second")
        page.get_by_role("dialog").get_by_label("Token").first.fill(second)
        page.keyboard.press("Enter")
        page.get_by_text("live", exact=True).nth(1).wait_for()
        trio.run(put_with_token, node.url, admin)
        page.locator(".tail tbody tr", has_text="after").wait_for()


@pytest.mark.long
@in_browser
def test_a_killed_follower_turns_red_with_its_reason_since_when_and_returns(browser, tmp_path):
    ports = free_ports(3)
    members = ",".join(f"{HOST}:{port}" for port in ports)
    nodes = [
        NodeProcess(
            tmp_path / f"n{port}",
            port=port,
            options=["--members", members],
            log_path=tmp_path / f"{port}.log",
            http=f"{HOST}:{free_port()}",
        )
        for port in ports
    ]
    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            node.require_ready()
        with busy(f"tailrace://{members}"), browser.open() as visit:
            told = {node: json.load(urllib.request.urlopen(f"http://{node.http}/api/console")) for node in nodes}
            leader = next(node for node in nodes if told[node]["role"] == "leader")
            follower = next(node for node in nodes if node is not leader)
            page = visit.page
            page.goto(address(leader))
            page.locator("tr", has_text=follower.address).get_by_text("follows").wait_for()
            follower.kill()
            red = page.locator("tr.bad", has_text=follower.address).first
            red.get_by_text("silent").wait_for()
            assert re.search(r"\d s", red.text_content())
            assert red.locator("td.wide").text_content()
            page.locator("#verdict", has_text=f"{follower.address}: it").wait_for()
            follower.start()
            page.locator("tr", has_text=follower.address).get_by_text("follows").wait_for()
    finally:
        for node in nodes:
            node.end_at_once()
