"""The console in a real browser, against real nodes: it sees a node die and heal, tails with a filter, resumes after
its node's restart without a hole, shows a gap and its repair; and everybody can read it, on a desk and on a phone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from m4cast.cluster.federation import LocalFederation, read_spec
from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client.roaming.client import Client
from tests.browser.tab import DESK, PHONE, Tab, new_tab
from tests.overlay.door.web.doors import web_serving

pytestmark = pytest.mark.browser
AUDIT = (Path(__file__).parent / "page_audit.js").read_text("utf-8")
NODES = 4
CONTROLS_MAX = 60
BIG = [{"id": number, "text": f"{number * 7919**5:064x}" * 8} for number in range(4000)]
SECRET = "correct horse battery staple"
REASONS = "expired, not wanted here, or hidden from this token"
HOSTILE = "<img src=x onerror=\"console.error('it ran')\">"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster.make(tmp_path_factory.mktemp("console") / "cluster", NODES, degree=3)
    try:
        made.up()
        with made.channel("n2") as channel:
            channel.publish("orders", [{"id": 0, "amount": 1.0, "item": HOSTILE}])
            channel.register("orders", "amount > 50")
        with made.channel("n1") as channel:
            channel.read("orders", where="id = 0")
            channel.lease("warehouse", topics=["orders"])
        client = Client([made.node("n1").door], key="shop-7", credential=SECRET)
        client.connect(create=True)
        client.disconnect()
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    with new_tab() as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab, cluster: LocalCluster) -> Iterator[Tab]:
    """The overview of the first node, in light, on a desk; its log has to stay empty."""
    browser.open("about:blank")
    browser.size(*DESK)
    browser.prefers("light")
    browser.log.clear()
    browser.open(f"http://{cluster.node('n1').web}/")
    browser.until(f"document.querySelectorAll('.node[data-state=heard]').length === {NODES - 1}", "all nodes are heard")
    yield browser
    assert browser.log == []


def named(name: str) -> str:
    return f"[...document.querySelectorAll('.node')].find((each) => each.textContent === {name!r})"


def events(text: str) -> str:
    return f"document.querySelector('.events').textContent.includes({text!r})"


def view(tab: Tab, name: str) -> None:
    tab.run(f"location.hash = '#{name}'")


def fill(tab: Tab, field: str, value: str) -> None:
    tab.run(f"document.getElementById({field!r}).value = {json.dumps(value)}")


def shown(tab: Tab) -> list[int]:
    """The sequences of the rows of a tail, newest first."""
    found: list[int] = tab.run(
        "[...document.querySelectorAll('tr[data-sequence]')].map((each) => +each.dataset.sequence)"
    )
    return found


def test_a_node_dies_and_heals_in_the_graph(tab: Tab, cluster: LocalCluster) -> None:
    cluster.kill("n3")
    tab.until(f"{named('n3')}.dataset.state === 'silent'", "the killed node turns silent")
    tab.until(events("n3 is silent"), "the event is told")
    tab.until("document.querySelector('.tile.bad').textContent.includes('1 silent')", "the tile counts it")
    cluster.start("n3")
    tab.until(f"{named('n3')}.dataset.state === 'heard'", "the node is heard again")
    tab.until(events("n3 started again, incarnation 2"), "its return is told")


def test_the_tree_of_a_node_is_chosen_by_keyboard(tab: Tab) -> None:
    for _ in range(CONTROLS_MAX):
        tab.press("Tab")
        if tab.run(f"document.activeElement === {named('n2')}"):
            break
    tab.press("Enter")
    tab.until("document.querySelectorAll('line.tree').length === 3", "the tree spans all nodes")
    assert "From n2, 3 nodes within" in tab.run("document.getElementById('tree').textContent")
    assert tab.run("document.activeElement.getAttribute('aria-pressed')") == "true", "focus stays on the node"
    tab.press("Escape")
    tab.until("!document.querySelector('line.tree')", "the tree is gone")


def test_tab_goes_through_every_control_in_order_and_shows_where_it_is(tab: Tab) -> None:
    tab.until("document.querySelectorAll('.u-wrap').length === 3", "the page is complete")
    controls = (
        "[...document.querySelectorAll('a[href], button:enabled, input, select, [tabindex=\"0\"]')]"
        ".filter((each) => each.checkVisibility())"
    )
    count = tab.run(f"{controls}.length")
    reached = []
    for _ in range(count):
        tab.press("Tab")
        reached.append(tab.run(f"{controls}.indexOf(document.activeElement)"))
        style = "getComputedStyle(document.activeElement.querySelector('.halo') ?? document.activeElement)"
        assert tab.run(f"{style}.outlineStyle !== 'none' || {style}.stroke !== 'rgba(0, 0, 0, 0)'"), reached
    assert reached == list(range(count)) and NODES + 10 <= count <= CONTROLS_MAX


def test_a_gap_and_its_repair_are_shown(tab: Tab, cluster: LocalCluster) -> None:
    tab.until("document.querySelectorAll('.u-wrap').length === 3", "there are rates: counters were seen before")
    with cluster.channel("n2") as channel:
        staged = channel.stage("big", BIG)
        # The stopped node finds the announcement of the large batch and the small one that follows together, and has
        # to fetch the former.
        cluster.pause("n1")
        channel.commit(staged, acks=0)
        channel.publish("big", [{"id": 1, "text": "small"}], acks=0)
        cluster.resume("n1")
    tab.until(events("1 gap opened"), "the gap is told")
    tab.until(events("1 gap repaired"), "its repair is told")
    tab.until(
        "[...document.querySelectorAll('.tile')].some((each) => each.textContent.includes('1 opened, 1 repaired'))", ""
    )


def test_rates_begin_when_their_window_is_long_enough(tab: Tab) -> None:
    """Ten rows are published between the first look and the second: over two seconds that would be 5 rows/s."""
    points = tab.run("""(async () => {
      const watch = new (await import("/console/watch.js")).watch.constructor();
      const [fetched, clock] = [window.fetch, performance.now];
      let looks = 0;
      const answers = {
        "/topology": () => ({ nodes: [], node_id: "", channel: "" }),
        "/units": () => ({ links: [] }),
        "/metrics.json": () => ({
          m4cast_node_incarnation: [[{}, 1]], m4cast_published_rows_total: [[{}, 10 * Math.min(looks, 2)]],
        }),
      };
      window.fetch = async (path) => ({ ok: true, json: async () => answers[path]() });
      performance.now = () => 2000 * looks;
      try {
        for (looks = 1; looks <= 8; looks += 1) await watch.look();
      } finally {
        [window.fetch, performance.now] = [fetched, clock];
      }
      return watch.history.published;
    })()""")
    assert points == [None, None, 10 / 6, 10 / 8, 10 / 10, 0, 0]


def test_an_empty_chart_says_when_its_values_begin(tab: Tab) -> None:
    shown = tab.run("""(async () => {
      const { chart } = await import("/console/charts.js");
      const one = chart("Rows", [{ name: "rows", colour: "accent", get: () => [1, 2] }], String);
      document.body.append(one.element);
      const steps = [[1], [1, 2]].map((times) => {
        one.show(times);
        return [one.element.innerText.includes("after a few seconds"), one.element.querySelectorAll("canvas").length];
      });
      one.forget();
      one.element.remove();
      return steps;
    })()""")
    assert shown == [[True, 0], [False, 1]]


def test_a_topic_is_described_and_its_rows_are_text(tab: Tab) -> None:
    view(tab, "topics")
    tab.until("document.querySelector('.names a')", "the topics are listed")
    search = "document.getElementById('topic-search')"
    for part, found in (("no such topic", "No topic has this in its name."), ("", "orders")):
        tab.run(f"{search}.value = {part!r}; {search}.dispatchEvent(new Event('input'))")
        assert found in tab.run("document.querySelector('.names').innerText")
    view(tab, "topics/orders")
    tab.until("document.querySelector('tr[data-sequence]')", "the last rows are shown")
    text = tab.run("document.querySelector('main').innerText")
    assert "double" in text and "amount" in text and HOSTILE in text
    assert not tab.run("document.querySelector('main img')"), "text from a row became an element"


def test_a_tail_has_the_rows_of_its_filter(tab: Tab, cluster: LocalCluster) -> None:
    view(tab, "tail")
    fill(tab, "tail-topic", "orders")
    fill(tab, "tail-where", "amount > 100")
    tab.run("document.getElementById('tail-start').click()")
    tab.until("document.getElementById('tail-state').textContent === 'live'", "it follows")
    with cluster.channel("n4") as channel:
        channel.publish("orders", [{"id": 1, "amount": 7.0}, {"id": 2, "amount": 700.0}, {"id": 3, "amount": 701.0}])
    tab.until("document.querySelectorAll('tr[data-sequence]').length === 2", "two rows pass")
    assert shown(tab) == [3, 2]
    tab.run("document.getElementById('tail-explain').click()")
    tab.until(
        "document.getElementById('tail-explained').textContent.includes('of CPU per million rows')", "it is explained"
    )


def test_a_bad_filter_is_refused_with_its_reason(tab: Tab) -> None:
    view(tab, "tail")
    fill(tab, "tail-topic", "orders")
    fill(tab, "tail-where", "amount >")
    tab.run("document.getElementById('tail-start').click()")
    tab.until("document.getElementById('tail-error').textContent.includes('where')", "the refusal is shown")
    assert all("400" in line for line in tab.log), tab.log
    tab.log.clear()


@pytest.mark.parametrize("where", ["", "id > 10"], ids=["whole", "filtered"])
def test_a_tail_resumes_without_a_hole_when_its_node_restarts(tab: Tab, cluster: LocalCluster, where: str) -> None:
    view(tab, "tail")
    fill(tab, "tail-topic", "orders")
    fill(tab, "tail-where", where)
    tab.run("document.getElementById('tail-start').click()")
    tab.until("document.getElementById('tail-state').textContent === 'live'", "it follows")
    with cluster.channel("n2") as channel:
        (first,) = channel.publish("orders", [{"id": 10}, {"id": 11}])
        seen = first.next - 1
        tab.until(f"document.querySelector('tr[data-sequence=\"{seen}\"]')", "rows arrive")
        cluster.kill("n1")
        tab.until("document.getElementById('tail-state').textContent.includes('lost')", "the loss is told")
        tab.until("document.getElementById('link').textContent.includes('does not answer')", "so is the node's silence")
        (missed,) = channel.publish("orders", [{"id": number} for number in range(12, 17)])
        cluster.start("n1")
        (last,) = channel.publish("orders", [{"id": 17}])
    tab.until(f"document.querySelector('tr[data-sequence=\"{last.first}\"]')", "it continues")
    assert missed.next == last.first
    assert shown(tab) == list(range(last.first, seen - bool(not where) - 1, -1))
    counted = "7 rows, resumed 1 time" if where else "8 rows, none missing, resumed 1 time"
    tab.until(f"document.getElementById('tail-counts').textContent.includes({counted!r})", "counted")
    assert all("ERR_" in line for line in tab.log), tab.log
    tab.log.clear()


def test_an_address_that_makes_no_sense_leads_to_the_overview(tab: Tab) -> None:
    for address in ("tail/100%", "constructor", "toString/orders"):
        view(tab, "clients")
        tab.until("document.title.startsWith('Clients')", "another view is shown")
        view(tab, address)
        tab.until("document.title.startsWith('Overview')", address)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_view_can_be_read(tab: Tab, theme: str, size: tuple[int, int]) -> None:
    tab.size(*size)
    tab.prefers(theme)
    for name, content in {
        "overview": ".u-wrap",
        "topics/orders": "tr[data-sequence]",
        "tail/orders": "#tail-counts",
        "interest": "#card-wanted-rows + div table",
        "clients": "td .pill",
        "units": ".empty",
    }.items():
        view(tab, name)
        tab.until(f"document.querySelector({content!r})", f"{name} is shown")
        found = tab.run(AUDIT)
        problems = {key: found[key] for key in ("faint", "small", "unnamed", "twice")}
        assert problems == {key: [] for key in problems}, name
        assert found["width"] <= size[0], f"{name} is wider than its window"
        assert found["levels"] == 1 and found["texts"] >= 15 and found["controls"] >= 8


def test_interest_shows_who_wants_what_and_what_it_costs(tab: Tab) -> None:
    view(tab, "interest")
    for card, told in {
        "wanted-rows": "n2\torders\tamount > 50",
        "readers": "warehouse\torders",
        "cpu-of-filters": "127.0.0.1",
    }.items():
        tab.until(f"document.getElementById('card-{card}').nextSibling.innerText.includes({told!r})", card)


def test_rows_wait_for_a_client_until_it_returns(tab: Tab, cluster: LocalCluster) -> None:
    door = cluster.node("n1").door
    with cluster.channel("n1") as channel:
        client = Client([door], key="shop-8", credential=SECRET)
        client.connect(create=True)
        client.subscribe("visits", "n > 0", name="mine")
        client.disconnect()
        channel.publish("visits", [{"n": n} for n in range(3)])
    row = "[...document.querySelectorAll('tbody tr')].find((each) => each.cells[0].textContent === 'shop-8')"
    told = f"[...{row}.cells].slice(1, 7).map((each) => each.textContent).join()"
    view(tab, "clients")
    tab.until(f"{told} === 'away,3,mine,visits,n > 0,n1'", "what waits is shown")
    with Client([door], key="shop-8", credential=SECRET) as back:
        assert sum(map(len, back.notifications(idle_s=0.5))) == 2
        tab.until(f"{told} === 'connected,0,mine,visits,n > 0,n1'", "nothing waits any longer")


def test_a_gateway_goes_down_and_comes_back(browser: Tab, tmp_path: Path) -> None:
    spec = tmp_path / "two.toml"
    spec.write_text(
        '[[channel]]\nname = "warsaw"\nexports = ["orders"]\n[[channel]]\nname = "berlin"\nimports = ["orders"]\n'
        '[[gateway]]\nfrom = "berlin.1"\nto = "warsaw.1"\n',
        encoding="utf-8",
    )
    federation = LocalFederation.make(tmp_path / "federation", read_spec(spec))
    warsaw, berlin = federation.clusters["warsaw"], federation.clusters["berlin"]
    unit = "document.querySelector('[data-unit=\"m4cast/berlin\"]')"
    try:
        federation.up()
        browser.size(*DESK)
        browser.open(f"http://{warsaw.node('n1').web}/#units")
        browser.until(f"{unit}.dataset.state === 'heard'", "the other unit is reached")
        assert browser.run("document.querySelectorAll('line.gateway.up').length") == 1
        with warsaw.channel("n1") as channel:
            channel.publish("orders", [{"id": 1}, {"id": 2}])
        browser.until(
            "document.querySelector('[aria-label=\"Rows sent\"] strong').textContent === '2'", "rows cross it"
        )
        for size in (DESK, PHONE):
            browser.size(*size)
            found = browser.run(AUDIT)
            assert {key: found[key] for key in ("faint", "small", "unnamed", "twice")} == {
                key: [] for key in ("faint", "small", "unnamed", "twice")
            }
            assert found["width"] <= size[0]
            tabs = browser.run(
                "[...document.querySelectorAll('nav a')].map((each) => each.getBoundingClientRect())"
                ".map((each) => [each.left, each.right, each.top])"
            )
            assert len(tabs) == 6 and all(left >= 0 and right <= size[0] for left, right, _ in tabs), tabs
            assert len({top for _, _, top in tabs}) == 1, "all tabs are in one line"
        berlin.kill("n1")
        browser.until(f"{unit}.dataset.state === 'silent'", "the other unit is not reached")
        berlin.start("n1")
        browser.until(f"{unit}.dataset.state === 'heard'", "it is reached again")
        view(browser, "overview")
        browser.until(f"{events('Gateway to m4cast/berlin')} && {events('is down')} && {events('is up')}", "it is told")
        assert browser.log == []
    finally:
        browser.open("about:blank")
        browser.log.clear()
        federation.down()


def test_a_tail_counts_the_numbers_that_its_token_passes_over(browser: Tab, tmp_path: Path) -> None:
    """Hidden rows and rows that are not wanted leave numbers out: nothing is claimed to be missing, or complete."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        f'[[token]]\nname = "all"\nsecret = "{SECRET}"\nread = ["*"]\npublish = ["*"]\n'
        '[[token]]\nname = "few"\nsecret = "few-few-few-few-few"\nread = ["*"]\nwhere = {"*" = "id = 1 OR id = 4"}\n',
        encoding="utf-8",
    )
    with web_serving(tmp_path, 1, tokens=f"file:{tokens}") as web:
        web.post("/topics/orders", [{"id": number} for number in range(6)], Authorization=f"Bearer {SECRET}")
        for secret, counted in {
            "few-few-few-few-few": f"2 rows, 2 numbers passed over ({REASONS})",
            SECRET: "6 rows, none missing",
        }.items():
            browser.open("about:blank")
            browser.open(f"http://{web.address}/#tail")
            browser.until("document.getElementById('tail-from')", "the form is shown")
            browser.run(f"sessionStorage.setItem('m4cast-token', {secret!r})")
            fill(browser, "tail-topic", "orders")
            fill(browser, "tail-from", "earliest")
            browser.run("document.getElementById('tail-start').click()")
            browser.until(f"document.getElementById('tail-counts').textContent === {counted!r}", counted)
        browser.open("about:blank")
    browser.log.clear()


def test_a_door_with_tokens_asks_for_one_and_keeps_it_out_of_addresses(browser: Tab, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        '[[token]]\nname = "shop"\nsecret = "s3cret-s3cret-s3cret"\nread = ["orders"]\n', encoding="utf-8"
    )
    with web_serving(tmp_path, 1, tokens=f"file:{tokens}") as web:
        browser.open(f"http://{web.address}/")
        browser.until("document.getElementById('token-dialog').open", "a token is asked for")
        for size in (DESK, PHONE):
            for theme in ("light", "dark"):
                browser.size(*size)
                browser.prefers(theme)
                found = browser.run(AUDIT)
                problems = {key: found[key] for key in ("faint", "small", "unnamed", "twice")}
                assert problems == {key: [] for key in problems}, (size, theme)
                assert found["width"] <= size[0]
        fill(browser, "token-value", "s3cret-s3cret-s3cret")
        browser.run("document.querySelector('[value=use]').click()")
        browser.until("document.getElementById('link').textContent === 'live'", "the token is used")
        browser.until(
            "document.querySelector('main').innerText.includes('This token may not see metrics')", "its rights hold"
        )
        addresses = browser.run(
            "performance.getEntriesByType('resource').map((each) => each.name).join() + location.href"
        )
        assert "s3cret" not in addresses and "/topology" in addresses
        assert all("401" in line or "403" in line for line in browser.log), browser.log
        browser.open("about:blank")
    browser.log.clear()
