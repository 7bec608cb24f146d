"""The console in a real browser, over real brokers: what an operator does."""

import json
import signal
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.browser import chromium, console_process

import vq

#: Milliseconds after which a page that does not come to what is expected has failed.
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def console(cluster, tmp_path_factory):
    directory = tmp_path_factory.mktemp("console")
    with console_process(cluster, directory, "--open", "--probe") as address:
        yield f"{address}/c/{cluster.name}"


@pytest.fixture(scope="module")
def browser(console):
    """After the cluster: Playwright's loop runs in this thread from now on."""
    del console
    with chromium() as found:
        yield found


class Tab:
    """A page, and what the browser complains about."""

    def __init__(self, browser, **options) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.page.on("console", self._complained)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _complained(self, message) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, kind, *_) -> None:
        self.context.close()
        if kind is None:
            assert self.complaints == []


@pytest.mark.slow
def test_an_operator_goes_from_the_first_topic_to_a_moved_lag(browser, console, cluster) -> None:
    """Makes a topic, sends, sees the lag of a group grow by itself, resets it, and it is gone."""
    with Tab(browser) as page:
        page.goto(console)
        page.get_by_role("link", name="Create the first one").click()
        page.get_by_label("Name").fill("orders")
        page.get_by_label("partitions", exact=True).fill("2")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("link", name="Send a message").click()
        page.get_by_label("Content").fill('{"order": 1}')
        page.get_by_label("Key").fill("<b>k</b>")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("status").first).to_contain_text("Sent: partition")
        expect(page.locator(".messages")).to_contain_text('"order": 1')
        expect(page.locator(".messages .chip").first).to_have_text("<b>k</b>")

        ended = cluster.vq("consume", "orders", "--group", "billing", "--max", "1")
        assert ended.returncode == 0, ended.stderr
        page.goto(f"{console}/groups/billing")
        fact = page.locator(".fact", has_text="Messages behind").locator(".value")
        expect(fact).to_have_text("0")
        cluster.vq("produce", "orders", stdin=b"".join(b"%d\n" % each for each in range(40)))
        expect(fact).to_have_text("40", timeout=WAIT_MS)  # without a click: the page is live
        page.get_by_role("link", name="Reset…").click()
        page.get_by_label("Go on at").select_option("latest")
        page.get_by_role("button", name="Show the plan").click()
        page.get_by_label("Type billing to confirm").fill("billing")
        page.get_by_role("button", name="Reset", exact=True).click()
        expect(fact).to_have_text("0", timeout=WAIT_MS)
        page.goto(f"{console}/audit")
        expect(page.locator("table")).to_contain_text("create_topic")


@pytest.mark.slow
def test_a_dead_letter_is_sent_again(browser, console, cluster) -> None:
    """The page shows why a group gave a message up; sent again, the group handles it."""
    cluster.vq("topic", "create", "charges", "--partitions", "1")
    handled = []
    broken = [True]

    def handle(message: vq.Message) -> None:
        if broken[0]:
            raise ValueError("no such account")
        handled.append(message.content)

    config = vq.MessageFactoryConfig(zookeeper=cluster.zookeeper, cluster=cluster.name)
    settings = vq.ConsumerConfig(group="desk", max_attempts=1, on_failure="dead-letter")
    stop, gone = threading.Event(), threading.Event()

    def consume() -> None:
        with (
            vq.MessageFactory(config) as factory,
            factory.create_producer() as producer,
            factory.create_consumer(settings) as consumer,
        ):
            consumer.subscribe("charges", 64 * 1024, handle).start()
            producer.send_sync(vq.Message("charges", b"<script>7</script>"))
            stop.wait(60)
        gone.set()

    threading.Thread(target=consume).start()
    try:
        with Tab(browser) as page:
            page.goto(f"{console}/dead-letters")
            link = page.get_by_role("link", name="desk")
            while not link.is_visible():
                page.reload()
            link.click()
            expect(page.locator(".messages")).to_contain_text("<script>7</script>")
            broken[0] = False
            page.get_by_role("link", name="Send again…").click()
            page.get_by_role("button", name="Send again").click()
            expect(page.locator("dl")).to_contain_text("done")
            while not handled:
                page.wait_for_timeout(50)
            assert handled == [b"<script>7</script>"]
    finally:
        stop.set()
        assert gone.wait(30)


@pytest.mark.slow
def test_a_refused_send_leads_to_why_and_to_the_page_that_mends_it(
    browser, console, cluster
) -> None:
    """From the refusal to its cause, and from the command to the button that does the same."""
    cluster.vq("topic", "create", "shut", "--partitions", "1")
    cluster.vq("topic", "close", "shut")
    with Tab(browser) as page:
        page.goto(f"{console}/topics/shut/send")
        page.get_by_label("Content").fill("x")
        page.get_by_role("button", name="Send").click()
        page.get_by_role("link", name="Why is it refused?").click()
        answer = page.locator("section", has=page.get_by_text("topic shut is closed for writes"))
        expect(answer).to_contain_text("vq topic open shut")
        answer.get_by_role("link", name="Open the page").click()
        with page.expect_navigation():
            page.get_by_role("button", name="Open for writes").click()
        page.goto(f"{console}/explain")
        page.get_by_role("link", name="Why is a message refused?").click()
        page.get_by_label("Topic", exact=True).fill("shut")
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("main")).to_contain_text("nothing refuses it")


@pytest.mark.slow
def test_definitions_are_downloaded_changed_and_imported(
    browser, console, cluster, tmp_path
) -> None:
    """As a file both ways; the plan is seen before the name is typed."""
    cluster.vq("topic", "create", "defined", "--partitions", "1", "--retention-hours", "72")
    with Tab(browser) as page:
        page.goto(f"{console}/definitions")
        with page.expect_download() as begun:
            page.get_by_role("button", name="Download the file").click()
        document = json.loads(Path(begun.value.path()).read_text())
        topics = [each for each in document["topics"] if each["topic"] == "defined"]
        topics[0]["settings"]["retention_hours"] = 7
        changed = tmp_path / "changed.json"
        changed.write_text(json.dumps({**document, "topics": topics}))
        page.get_by_label("File", exact=True).set_input_files(changed)
        page.get_by_role("button", name="Show the plan").click()
        expect(page.locator("table")).to_contain_text("retention_hours: 72 → 7")
        page.get_by_label(f"Type {cluster.name} to confirm").fill(cluster.name)
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("h1")).to_contain_text("done", timeout=WAIT_MS)  # it is live
        page.goto(f"{console}/topics/defined")
        kept = page.get_by_role("row", name="retention_hours")
        expect(kept.locator("td")).to_have_text("7 h")


def drag(page: Page, begin, end) -> None:
    """Drag with the mouse, in many small steps, as a hand does."""
    page.mouse.move(begin["x"] + begin["width"] / 2, begin["y"] + begin["height"] / 2)
    page.mouse.down()
    page.mouse.move(end["x"] + end["width"] / 2, end["y"] + end["height"] / 2, steps=20)
    page.mouse.up()


def placements(cluster) -> dict[int, str]:
    """Return the group of each partition of the topic ``flow``."""
    described = cluster.vq_json("topic", "describe", "flow")
    return {each["partition"]: each["group"] for each in described["partitions"]}


@pytest.mark.slow
def test_a_partition_is_dragged_while_messages_flow(browser, console, cluster) -> None:
    """It is on the other group after that, nothing is lost, and a plan of before is refused."""
    cluster.vq("topic", "create", "flow", "--partitions", "2")
    placed = placements(cluster)
    source = placed[0]
    target = {"b1": "b2", "b2": "b1"}[source]
    sent: list[vq.SendResult] = []
    stop, gone = threading.Event(), threading.Event()

    def send() -> None:
        config = vq.MessageFactoryConfig(zookeeper=cluster.zookeeper, cluster=cluster.name)
        with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
            while not stop.wait(0.01):
                sent.append(producer.send_sync(vq.Message("flow", b"x")))
        gone.set()

    threading.Thread(target=send).start()
    try:
        with Tab(browser, viewport={"width": 1280, "height": 1000}) as page:
            page.goto(f"{console}/allocation?topic=flow")
            chip = page.locator(f'[data-topic="flow"][data-group="{source}"] [data-partition="0"]')
            slot = page.locator(f'[data-topic="flow"][data-group="{target}"]')
            drag(page, chip.bounding_box(), slot.bounding_box())
            expect(page.get_by_label("Moves", exact=True)).to_have_value(f"flow/0 {target}")
            page.locator("#by-hand").get_by_role("button", name="Preview").click()
            stale = page.url
            expect(page.locator("main")).to_contain_text("flow/0")
            name = page.locator("dd code").first.inner_text()
            page.get_by_label(f"Type {name} to confirm").fill(name)
            page.get_by_role("button", name="Apply").click()
            expect(page.locator("dl")).to_contain_text("done", timeout=WAIT_MS)

            page.goto(f"{console}/allocation?topic=flow")  # back again, by the keyboard alone
            page.locator(f'[data-group="{target}"] [data-partition="0"]').focus()
            page.keyboard.press("Enter")
            page.get_by_label("Broker group", exact=True).select_option(source)
            page.get_by_role("button", name="Move", exact=True).press("Enter")
            expect(page.get_by_label("Moves", exact=True)).to_have_value(f"flow/0 {source}")
            page.goto(stale)
            expect(page.get_by_role("button", name="Apply")).to_have_count(0)
    finally:
        stop.set()
        assert gone.wait(30)
    assert placements(cluster)[0] == target
    found = cluster.vq("consume", "flow", "--group", "count", "--max", str(len(sent)), "--json")
    assert found.returncode == 0
    assert len(found.stdout.splitlines()) == len(sent)


@pytest.mark.slow
def test_a_killed_broker_is_on_the_overview(browser, console, cluster) -> None:
    """Nobody loads the page again; it says which broker, and what to do."""
    with Tab(browser) as page:
        page.goto(console)
        expect(page.locator(".fact", has_text="Brokers that answer")).to_contain_text("2 / 2")
        cluster.brokers["b2"].signal(signal.SIGKILL)
        try:
            expect(page.locator(".todo")).to_contain_text("b2", timeout=WAIT_MS)
            expect(page.locator(".todo")).to_contain_text("vq doctor")
        finally:
            cluster.brokers["b2"].wait(10)
            cluster.brokers["b2"].start()
        answer = page.locator(".fact", has_text="Brokers that answer")
        expect(answer).to_contain_text("2 / 2", timeout=WAIT_MS)
