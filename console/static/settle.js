// What the console does beyond plain links and forms. Everything works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("js");
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const wide = matchMedia("(min-width: 1200px)");

  // --- live: one event stream while the tab is seen; it only says that something changed ---
  const live = find("[data-live]");
  const WORDS = { on: "live", wait: "connecting", off: "not live" };
  const SILENCE = 25000;  // longer than the server's ping takes
  let stream = null, retry = 0, pause = 1000, heardAt = Date.now();
  const hear = () => { heardAt = Date.now(); };
  function say(state) {
    if (!live || live.dataset.live === state) return;
    live.dataset.live = state;
    find("[data-live-word]", live).textContent = WORDS[state];
    find("[data-live-more]", live).textContent = state === "off" ? ": asking every 30 s" : "";
    live.title = WORDS[state];
  }
  function open() {
    const url = document.body.dataset.events;
    if (!url || stream || document.hidden) return;
    stream = new EventSource(url);
    stream.addEventListener("open", () => { hear(); say("on"); pause = 1000; });
    stream.addEventListener("ping", () => { hear(); say("on"); });
    stream.addEventListener("changed", () => { hear(); say("on"); document.body.dispatchEvent(new Event("changed")); });
    stream.addEventListener("error", () => {
      // Closed for good means refused or gone: ask again later, and let the page's parts find out why. Whose session was ended from elsewhere
      // is led to the login by their answer, not half a minute later.
      say(stream.readyState === EventSource.CLOSED ? "off" : "wait");
      if (stream.readyState !== EventSource.CLOSED) return;
      close();
      if (pause === 1000) document.body.dispatchEvent(new Event("changed"));
      retry = setTimeout(open, pause);
      pause = Math.min(pause * 2, 30000);
    });
  }
  function close() { clearTimeout(retry); if (stream) stream.close(); stream = null; }
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else { hear(); open(); } });
  // A server that stands still keeps its connections open: only silence tells.
  setInterval(() => {
    if (document.hidden || Date.now() - heardAt < SILENCE) return;
    hear(); say("off"); close(); open();
  }, 1000);
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();

  // What somebody has just sent takes the page along: no answer to what the page asked by itself leads it elsewhere meanwhile.
  let leavingUntil = 0;
  addEventListener("submit", (event) => { if (!event.defaultPrevented) leavingUntil = Date.now() + 30000; });
  addEventListener("pageshow", () => { leavingUntil = 0; });
  document.body.addEventListener("htmx:beforeOnLoad", (event) => {
    if (Date.now() < leavingUntil && event.detail.xhr.getResponseHeader("HX-Redirect")) event.preventDefault();
  });

  // On a phone the menu is longer than its row: where one is stands in sight.
  const standing = find(".topbar nav [aria-current]");
  if (standing) standing.scrollIntoView({ block: "nearest", inline: "center" });

  const clock = find("[data-clock]");
  // In the zone of the person, as every time on the page.
  const zone = document.body.dataset.zone || "UTC", here = clock && clockOf(zone);
  function clockOf(name) {
    const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZoneName: "short" };
    try { return new Intl.DateTimeFormat("en-GB", { ...options, timeZone: name }); } catch { return new Intl.DateTimeFormat("en-GB", { ...options, timeZone: "UTC" }); }
  }
  const tick = () => { clock.textContent = here.format(new Date()); };
  if (clock) { tick(); setInterval(tick, 5000); }

  // --- the queue and the action beside it ---
  // Where there is no room for two, or somebody asks for a new tab, a link is a link.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-pane]");
    if (!link) return;
    if (!find("#pane") || !wide.matches || event.ctrlKey || event.metaKey || event.shiftKey) event.stopImmediatePropagation();
  }, true);
  document.addEventListener("click", (event) => {
    const back = event.target.closest("a[data-back]");
    const split = find(".split");
    if (back && split && wide.matches && split.hasAttribute("data-open")) { event.preventDefault(); closePane(); }
  });
  function closePane() {
    const url = new URL(location.href);
    const ref = url.searchParams.get("open");
    url.searchParams.delete("open");
    history.pushState({ htmx: true }, "", url);
    find(".split").removeAttribute("data-open");
    find("#pane").replaceChildren();
    const strip = find(`a[data-pane="${CSS.escape(ref || "")}"]`);
    mark();
    if (strip) strip.focus();
  }
  function mark() {
    const ref = new URLSearchParams(location.search).get("open");
    for (const link of all(".strip a[data-pane]")) {
      const strip = link.closest(".strip");
      if (link.dataset.pane === ref) strip.setAttribute("aria-current", "true"); else strip.removeAttribute("aria-current");
    }
  }
  document.body.addEventListener("htmx:configRequest", (event) => {
    if (document.body.dataset.name) event.detail.headers["X-Opened-By"] = encodeURIComponent(document.body.dataset.name);
    // The list is fetched for the address as it is now, which names the opened action.
    if (event.target.id === "queue") event.detail.path = location.pathname + location.search;
  });

  // --- selecting: what is ticked is this tab's, kept by the address of the list, and outlives whatever the server draws ---
  const selection = find("#selection");
  let selected = new Set();
  const boxes = () => all("#queue .pick input");
  // Asked for when needed: an action that is opened beside the list is no other list.
  function selectionKey() {
    const query = new URLSearchParams(location.search);
    query.delete("open");
    return mine + "selected:" + query;
  }
  function showSelection() {
    const here = boxes();
    for (const box of here) box.checked = selected.has(box.value);
    // Who has left the list has left the selection: nothing is asked about that is not seen.
    selected = new Set(here.filter((box) => box.checked).map((box) => box.value));
    try { sessionStorage.setItem(selectionKey(), JSON.stringify([...selected])); } catch { /* full: it lasts as long as the page */ }
    const every = find("[data-select-all]"), count = selected.size;
    if (every) { every.checked = count > 0 && count === here.length; every.indeterminate = count > 0 && count < here.length; }
    const said = find("[data-selected-said]", selection), words = count ? `${count} selected` : "Nothing selected";
    if (said.textContent !== words && (count || said.textContent)) said.textContent = words;
    find("[data-selected-count]", selection).textContent = ` (${count})`;
    if (!count && selection.contains(document.activeElement)) (every || find("#main")).focus({ preventScroll: true });
    selection.hidden = !count && find(".no-answer", selection).hidden;
  }
  function restoreSelection() {
    const kept = sessionStorage.getItem(selectionKey());
    selected = new Set(kept ? JSON.parse(kept) : boxes().filter((box) => box.defaultChecked).map((box) => box.value));
    showSelection();
  }
  if (selection) {
    document.addEventListener("change", (event) => {
      const box = event.target;
      if (box.matches("[data-select-all]")) selected = new Set(box.checked ? boxes().map((one) => one.value) : []);
      else if (!box.matches(".pick input")) return;
      else if (box.checked) selected.add(box.value);
      else selected.delete(box.value);
      showSelection();
    });
    document.addEventListener("click", (event) => { if (event.target.closest("[data-select-none]")) { selected = new Set(); showSelection(); } });
    // A live update draws every box as the server knows it: empty.
    document.body.addEventListener("htmx:afterSwap", (event) => { if (event.detail.target.id === "queue" || find("#queue", event.detail.target)) showSelection(); });
    // What is being asked about is done with; what could not be stays selected.
    document.body.addEventListener("htmx:afterSettle", (event) => {
      if (event.detail.target.id !== "selection-answer") return;
      for (const line of all("[data-asked]", event.detail.target)) selected.delete(line.dataset.asked);
      showSelection();
    });
    addEventListener("pageshow", (event) => { if (event.persisted) showSelection(); });
  }
  document.addEventListener("click", (event) => {
    const answer = event.target.closest("[data-dismiss]") && event.target.closest("#asked, #selection-answer");
    if (!answer) return;
    answer.replaceChildren();
    answer.focus({ preventScroll: true });
  });
  // Who pressed reads what became of it.
  document.body.addEventListener("htmx:afterSettle", (event) => { if (["asked", "selection-answer"].includes(event.detail.target.id)) event.detail.target.focus(); });

  // What a live part asks by itself is nobody at work; what is pressed within it is, and headers given in the markup would be inherited.
  document.body.addEventListener("htmx:configRequest", (event) => { if (event.detail.elt.hasAttribute("data-live-part")) event.detail.headers["X-Background"] = "1"; });

  let versions = new Map();
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    // A refusal that is no answer stands above the form and takes nothing typed away.
    const doc = event.detail.serverResponse || "";
    if (target.id === "decision" && event.detail.xhr.status >= 400 && !doc.includes('id="decision"')) { for (const old of all(":scope > .problem, :scope > .message", target)) old.remove(); event.detail.swapOverride = "afterbegin show:#decision:top"; }
    if (event.detail.xhr.status === 413) for (const old of all(":scope > .problem", target)) old.remove();
    if (target.id === "queue") versions = new Map(all(".strip", target).map((strip) => [strip.id, strip.dataset.version]));
    // A live part keeps what it showed while the console cannot say anything newer.
    if (event.detail.xhr.status >= 400 && event.detail.elt.hasAttribute("data-live-part")) { event.detail.shouldSwap = false; say("off"); }
  });
  // Open before anybody can press a key in it: what is not shown takes no focus. Two lines become one or the other way round: the strip stays
  // where it was under the pointer.
  document.body.addEventListener("htmx:afterSwap", (event) => {
    const target = event.detail.target;
    if (target.id !== "pane") return;
    const opened = find(`.strip a[data-pane="${CSS.escape(find("#action", target)?.dataset.ref || "")}"]`), list = find(".split > .list");
    const before = opened ? opened.getBoundingClientRect().top : 0;
    find(".split").setAttribute("data-open", "");
    if (opened) { list.scrollTop += opened.getBoundingClientRect().top - before; opened.scrollIntoView({ block: "nearest" }); }
    target.scrollTop = 0;
  });
  document.body.addEventListener("htmx:afterSettle", (event) => {
    const target = event.detail.target;
    if (target.id === "pane") {
      mark(); prepare(target); const head = find("h1", target); head.tabIndex = -1; if (!target.contains(document.activeElement)) head.focus({ preventScroll: true });
    }
    if (target.id === "queue" && event.detail.elt.id === "queue") {
      for (const strip of all("#queue .strip")) if (versions.size && versions.get(strip.id) !== strip.dataset.version) strip.classList.add("changed");
    }
    if (!event.detail.elt.hasAttribute("data-live-part") && find("#decision") && (target.id === "decision" || event.detail.elt.id === "decision")) { prepare(document); find("#decision").focus({ preventScroll: true }); }
  });
  // A button that was pressed is gone with its panel: whoever pressed it stays where they were.
  document.body.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target.id !== "world" || event.detail.elt.hasAttribute("data-live-part")) return;
    (find("#ask-now") || find("#world")).focus({ preventScroll: true });
  });
  document.addEventListener("animationend", (event) => event.target.classList.remove("changed"));

  // --- the decision form: the turn as it would be written, a draft that survives an ended session, one submit ---
  let typing = 0;
  function preview(form, wait) {
    clearTimeout(typing);
    // What is on the slip is no longer what the form says: until it is, a commit only shows the turn again.
    const seen = find("[name=turn_seen]", form), slip = find(".slip", form);
    if (seen) seen.value = "";
    if (slip) slip.classList.add("stale");
    // An answer that is still on its way would put an older turn there, as if it were what the form says.
    const turn = find("#turn", form);
    if (turn) htmx.trigger(turn, "htmx:abort");
    typing = setTimeout(() => { if (turn) htmx.trigger(turn, "preview"); }, wait);
  }
  // Drafts are the person's who typed them: whoever else signs in at this tab neither sees nor keeps them.
  const mine = "draft:" + (document.body.dataset.user || "") + ":";
  const forget = (keep) => { for (const key of Object.keys(sessionStorage)) if (key.startsWith("draft:") && !(keep && key.startsWith(keep))) sessionStorage.removeItem(key); };
  if (document.body.dataset.user) forget(mine);
  if (selection) restoreSelection();
  const draftKey = (form) => mine + form.dataset.draft;
  const DRAFT = ["outcome", "reason", "result", "error", "look_again_at"];
  function keepDraft(form) {
    const data = new FormData(form);
    sessionStorage.setItem(draftKey(form), JSON.stringify(DRAFT.map((name) => [name, data.get(name) || ""])));
  }
  // Which draft was sent last, if any: only of that may the door say that it is kept.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post" || event.target.closest(".door")) return;
    sessionStorage.setItem("sent", event.target.dataset.draft ? draftKey(event.target) : "");
  }, true);
  const promise = find("[data-draft-kept]");
  if (promise) promise.hidden = !sessionStorage.getItem(sessionStorage.getItem("sent") || "");
  function prepare(within) {
    for (const form of all("form[data-draft]", within)) {
      const kept = sessionStorage.getItem(draftKey(form));
      if (!kept || form.elements.reason.value) continue;
      for (const [name, value] of JSON.parse(kept)) if (value && form.elements[name]) form.elements[name].value = value;
      if (form.elements.reason.value) preview(form, 0);
    }
  }
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-draft]");
    if (!form) return;
    keepDraft(form);
    // A word about what stands beside the turn does not change the turn.
    if (["seen_against", "despite"].includes(event.target.name)) return;
    preview(form, event.target.name === "outcome" ? 0 : 250);
  });
  document.addEventListener("click", (event) => {
    const chip = event.target.closest("[data-preset]");
    if (!chip) return;
    event.preventDefault();
    const reason = chip.form.elements.reason;
    reason.value = [reason.value.trim(), chip.value].filter(Boolean).join(". ");
    reason.focus();
    reason.dispatchEvent(new Event("input", { bubbles: true }));
  }, true);
  // Enter in a field presses the form's first button: the turn is shown anew where it stands, nothing is sent to be written.
  document.addEventListener("submit", (event) => {
    if (!event.submitter || !event.submitter.matches("[data-review]")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    preview(event.target, 0);
  }, true);
  // From the reason straight to the button; what is pressed there is pressed like any button. The turn may still be on its way: the button
  // comes with it, unless something is typed meanwhile.
  let hurried = null;
  const arrive = () => {
    const button = hurried && !find(".slip.stale", hurried) && find("[data-once]:enabled", hurried);
    if (button) { hurried = null; button.focus(); }
  };
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing || !event.target.matches("form[data-draft] :is(textarea, input)")) return;
    event.preventDefault();
    hurried = event.target.form;
    if (find("[name=turn_seen]", hurried)?.value) arrive(); else preview(hurried, 0);
  });
  document.addEventListener("input", () => { hurried = null; });
  document.body.addEventListener("htmx:afterSettle", (event) => { if (hurried && event.target.closest("#turn")) arrive(); });
  // In a form that does several things, Enter in a field presses the button of what the field is for.
  document.addEventListener("keydown", (event) => {
    const form = event.key === "Enter" && !event.isComposing && event.target.matches("input") && event.target.form;
    if (!form || !find("[data-enter]", form)) return;
    event.preventDefault();
    find("button", event.target.closest("fieldset.dry") || find(".commit", form)).click();
  });
  document.addEventListener("submit", (event) => {
    // Whoever signs out leaves nothing behind: the next person at this tab is another one.
    if (event.target.matches("[data-forget]")) forget("");
    const button = event.submitter;
    if (button && button.hasAttribute("data-once")) setTimeout(() => { button.disabled = true; });
  });
  const NO_ANSWER = "No answer came back, so it is not known what became of it. Send it again: it does nothing twice.";
  // Where a form does several things, the button that decides sends it, and the form is what was sent.
  const sentForm = (sent) => (sent.matches("button[hx-post][data-once]") && sent.form) || sent;
  document.body.addEventListener("htmx:afterRequest", (event) => {
    const sent = event.detail.elt, form = sentForm(sent), status = event.detail.xhr.status;
    if (status) hear();
    if (sent === form && sent.matches("button[hx-post]") && !(status && (status < 500 || status === 503))) {
      // Only a question stores nothing for certain; of anything else nobody knows.
      const said = event.detail.target.matches("#dry-run, #tried") ? "No answer came back. Nothing was stored." : NO_ANSWER;
      const gone = Object.assign(document.createElement("p"), { className: "band is-down", textContent: said });
      gone.setAttribute("role", "alert");
      event.detail.target.replaceChildren(gone);
    }
    if (!form.matches("form")) return;
    if (form.dataset.draft && [200, 201, 202].includes(status) && find("#decision > .answer")) sessionStorage.removeItem(draftKey(form));
    for (const button of all("[data-once]", form)) button.disabled = false;
    guard();
    if (status && (status < 500 || status === 503)) return;
    let unknown = find(".no-answer", form);
    if (!unknown && form.closest("#decision, #status, #world")) {
      // The forms of answers (send again, withdraw) have no place of their own for it.
      unknown = Object.assign(document.createElement("p"), { className: "band no-answer", textContent: NO_ANSWER });
      unknown.setAttribute("role", "alert");
      form.append(unknown);
    }
    if (unknown) unknown.hidden = false;
  });
  document.body.addEventListener("htmx:beforeRequest", (event) => { const form = sentForm(event.detail.elt), unknown = find(".no-answer", form); if (unknown && form.matches("form")) unknown.hidden = true; });
  for (const name of ["htmx:sendError", "htmx:timeout"]) document.body.addEventListener(name, () => say("off"));

  // --- the record changed or ended under somebody who types: nothing is sent before they have looked ---
  const looked = new Set();
  function guard() {
    const news = find("#foot-news [data-blocks]");
    const blocked = Boolean(news) && !looked.has(news.dataset.blocks);
    for (const button of all("#decision-form [data-once]")) {
      if (blocked) { button.disabled = true; button.dataset.blocked = ""; }
      else if ("blocked" in button.dataset) { button.disabled = false; delete button.dataset.blocked; }
    }
  }
  document.addEventListener("click", (event) => {
    const look = event.target.closest("[data-look]");
    if (!look) return;
    looked.add(look.closest("[data-blocks]").dataset.blocks);
    look.closest("[data-blocks]").classList.add("is-note");
    guard();
    find("#action").scrollIntoView();
  });
  document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
    // What was asked about an action that is no longer the opened one says nothing about this one.
    const of = event.detail.fragment.firstElementChild?.dataset.of;
    if (of && of !== find("#action")?.dataset.ref) { event.detail.shouldSwap = false; return; }
    // The same news again is not said aloud again.
    const said = find("[data-blocks]", event.detail.target), news = find("[data-blocks]", event.detail.fragment);
    // A part that says the same is left as it is: somebody may be reading it, with a detail opened.
    const version = event.detail.target.dataset.version;
    if (version && event.detail.fragment.firstElementChild && event.detail.fragment.firstElementChild.dataset.version === version) event.detail.shouldSwap = false;
    // News for somebody who types: not where there is no form any more, nor while what they typed is on its way and its answer will say it.
    const typed = find("#decision-form");
    if (event.detail.target.id === "foot-news") { if (!typed) event.detail.shouldSwap = false; else if (typed.classList.contains("htmx-request")) withhold(event); }
    if (event.detail.target.id === "foot-news" && said && news && said.dataset.blocks === news.dataset.blocks) event.detail.shouldSwap = false;
  });
  for (const name of ["htmx:afterSettle", "htmx:oobAfterSwap"]) document.body.addEventListener(name, guard);
  // Once everything on the page works: what was kept is put back, and what was typed before this script ran counts as typed now.
  const isTouched = (field) => field.checked !== field.defaultChecked || (field.matches("textarea, input:not([type=hidden], [type=radio], [type=checkbox])") && field.value !== field.defaultValue);
  document.addEventListener("DOMContentLoaded", () => {
    prepare(document);
    for (const form of all("form[data-draft]")) if ([...form.elements].some(isTouched)) { keepDraft(form); preview(form, 0); }
  });

  // --- keys; none of them decides anything ---
  const help = find("#help"), single = find("[data-keys]");
  if (single) {
    // The person's, on every computer of theirs.
    single.checked = document.body.dataset.singleKeys !== "off";
    single.addEventListener("change", () => {
      const token = find("input[name=csrfmiddlewaretoken]");
      if (!single.dataset.keys || !token) return;
      fetch(single.dataset.keys, { method: "POST", keepalive: true, body: new URLSearchParams({ csrfmiddlewaretoken: token.value, single_keys: single.checked ? "yes" : "" }) }).catch(() => say("off"));
    });
  }
  for (const button of all("[data-help]")) button.addEventListener("click", () => help.showModal());
  const LINES = ".strip, .agent-line, .ledger-line", LINKS = ".strip .what a, .agent-line .who a, .ledger-line .name a";
  function move(step) {
    const links = all(LINKS);
    if (!links.length) return;
    const current = links.findIndex((link) => link.closest(LINES).contains(document.activeElement));
    const from = current >= 0 ? current : links.findIndex((link) => link.closest("[aria-current]"));
    links[Math.min(links.length - 1, Math.max(0, from + step))].focus();
  }
  function choose(outcome) {
    const radio = find(`#decision input[value="${outcome}"]`);
    if (!radio || radio.disabled) return;
    radio.click();
    find("#decision").scrollIntoView();
    find("#reason").focus();
  }
  function pick() {
    const strip = document.activeElement.closest(".strip") || find(".strip[aria-current]");
    const box = strip && find(".pick input", strip);
    if (box) box.click();
  }
  const keys = {
    j: () => move(1), k: () => move(-1), d: () => choose("done"), f: () => choose("failed"),
    r: () => { const ask = find("#ask-now"); if (ask) ask.click(); },
    o: () => { if (document.activeElement.matches(LINKS)) document.activeElement.click(); },
    x: pick,
    n: () => { const next = find("[data-next]"); if (next) next.click(); },
    "/": () => { const text = find("#f-text"); if (text) { text.closest("details").open = true; text.focus(); } },
    "?": () => help.showModal(),
    Escape: () => { const back = find("a[data-back]"); if (back) back.click(); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || find("dialog[open]")) return;
    // Keys that make up a character of another script are no keys of ours; and one that is held down is pressed once, but for moving on.
    if (event.isComposing || event.keyCode === 229 || (event.repeat && !["j", "k"].includes(event.key))) return;
    if (event.target.isContentEditable || event.target.matches("input:not([type=radio], [type=checkbox]), select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
    if (event.key !== "Escape" && single && !single.checked) return;
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  // --- claiming: c claims the focused row or the opened action, and gives it back; it decides nothing ---
  keys.c = () => {
    const strip = document.activeElement.closest(".strip"), form = find("#claim-toggle");
    const link = strip && find("a[data-pane]", strip);
    if (link && form) {
      // Each row asks for itself, so that of two rows claimed in one breath none is left out.
      const values = { ...Object.fromEntries(new FormData(form)), ref: link.dataset.pane };
      htmx.ajax("POST", form.action, { source: link, target: "#claim-said", swap: "innerHTML", values });
      return;
    }
    const button = find("#claimed [data-claim]");
    if (button) button.click();
  };
  // What was answered to a key is read aloud; the key's row keeps the focus.
  document.body.addEventListener("htmx:afterSettle", (event) => { if (event.detail.target.id === "correction" || (event.detail.elt.id === "correction")) find("#correction").focus({ preventScroll: true }); });
  // --- a live update moves nothing that is read, and takes the focus from nobody ---
  let held = null;
  const scroller = () => (wide.matches && find(".split > .list")) || document.scrollingElement;
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "queue" || event.detail.elt.id !== "queue") return;
    const box = scroller(), edge = box === document.scrollingElement ? 0 : box.getBoundingClientRect().top;
    const strips = all("#queue .strip"), lower = edge + box.clientHeight;
    const places = strips.map((strip) => { const at = strip.getBoundingClientRect(); return { id: strip.id, top: at.top, seen: at.bottom > edge && at.top < lower }; });
    const seen = places.filter((place) => place.seen);
    const inHand = document.activeElement.closest("#queue .strip"), opened = find("#queue .strip[aria-current]");
    const first = [inHand, opened].filter(Boolean).map((strip) => seen.find((place) => place.id === strip.id)).filter(Boolean);
    // At the very top with nothing in hand, what comes first is what should be seen.
    const anchors = first.length || box.scrollTop > 0 ? [...first, ...seen] : [];
    const at = inHand ? strips.indexOf(inHand) : -1;
    const near = at < 0 ? [] : [...strips.slice(at), ...strips.slice(0, at).reverse()].map((strip) => strip.id);
    held = { anchors, near, part: document.activeElement.matches(".pick input") ? ".pick input" : ".what a" };
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (!held || event.detail.target.id !== "queue") return;
    const { anchors, near, part } = held;
    held = null;
    const anchor = anchors.find((place) => document.getElementById(place.id));
    if (anchor) scroller().scrollTop += document.getElementById(anchor.id).getBoundingClientRect().top - anchor.top;
    if (!near.length || (document.activeElement && document.activeElement.closest("#queue .strip"))) return;
    // What had the focus is gone: the next one has it, else the one before, else the list.
    const strip = near.map((id) => document.getElementById(id)).find(Boolean);
    const next = strip && (find(part, strip) || find(".what a", strip));
    (next || find("#main")).focus({ preventScroll: true });
    if (strip) strip.scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-select-crash]");
    if (!button) return;
    const these = all(`#queue .pick input[data-crash="${button.dataset.selectCrash}"]`), on = these.some((box) => !box.checked);
    for (const box of these) if (box.checked !== on) box.click();
  });

  // --- a part that refreshes by itself says what it shows already: where nothing changed, nothing comes and nothing is drawn ---
  const shown = new Map();  // by the part's id: the address that was asked, and the validator of the answer that stands there
  document.body.addEventListener("htmx:configRequest", (event) => {
    const { elt, path, headers } = event.detail, before = shown.get(elt.id);
    if (elt.hasAttribute("data-live-part") && before && before.path === path) headers["If-None-Match"] = before.validator;
  });
  // What anything else drew there is not what the validator stands for.
  const redrawn = (target) => {
    for (const id of [...shown.keys()]) {
      const part = document.getElementById(id);
      if (!part || part.contains(target) || target.contains(part)) shown.delete(id);
    }
  };
  for (const name of ["htmx:afterSwap", "htmx:oobAfterSwap"]) document.body.addEventListener(name, (event) => redrawn(event.detail.target));
  document.body.addEventListener("htmx:afterRequest", (event) => {
    const { elt, path } = event.detail.requestConfig, { xhr } = event.detail, validator = xhr.getResponseHeader("ETag");
    if (xhr.status === 200 && validator && elt.id && elt.hasAttribute("data-live-part") && elt.getAttribute("hx-target") === "this" && !isWithheld) shown.set(elt.id, { path, validator });
  });

  // --- approvals: keys lead to the form and choose; nothing is answered by a key ---
  function answerWith(choice) {
    const strip = document.activeElement.closest("#approvals .strip"), link = strip && find(".what a", strip);
    if (link) { const url = new URL(link.href); url.searchParams.set("choose", choice); url.hash = "answer"; location.assign(url); return true; }
    const radio = find(`#approval-form input[value="${choice}"]`);
    if (!radio) return false;
    radio.click();
    find("#answer").scrollIntoView();
    const field = find({ edit: "#args", reject: "#message", respond: "#message" }[choice] || "#none");
    (field || radio).focus();
    return true;
  }
  keys.a = () => answerWith("approve");
  keys.e = () => answerWith("edit");
  keys.x = () => { if (!answerWith("reject")) pick(); };
  const search = keys["/"];
  keys["/"] = () => { const text = find("[data-search]"); if (text) text.focus(); else search(); };
  // What is typed about a call is this tab's until it is answered: proving who one is leads away from the page and back.
  const keptForm = find("form[data-keep]"), KEPT = ["decision", "args", "message"];
  if (keptForm) {
    const key = mine + keptForm.dataset.keep, kept = sessionStorage.getItem(key), data = new FormData(keptForm);
    const untouched = keptForm.hasAttribute("data-fresh") && !data.get("message");
    if (kept && untouched) for (const [name, value] of JSON.parse(kept)) {
      if (name === "decision" && data.get("decision")) continue;
      if (value && keptForm.elements[name]) keptForm.elements[name].value = value;
    }
    keptForm.addEventListener("input", () => {
      const now = new FormData(keptForm);
      try { sessionStorage.setItem(key, JSON.stringify(KEPT.map((name) => [name, now.get(name) || ""]))); } catch { /* full: it lasts as long as the page */ }
    });
  }
  const answered = find("#approval-status:not([data-state=pending])");
  if (answered) for (const key of Object.keys(sessionStorage)) if (key.startsWith(mine + "approval:" + answered.dataset.of + ":")) sessionStorage.removeItem(key);
  // Lists that refresh by themselves: who was at a line that is gone is at the next one, and what changed elsewhere is tinted.
  let near = null, before = new Map();
  const LISTS = "#approvals, #runs, #agents";
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.target.matches(LISTS)) return;
    const strips = all(LINES, event.detail.target), at = strips.indexOf(document.activeElement.closest(LINES));
    before = new Map(strips.map((strip) => [strip.id, strip.dataset.version]));
    near = at < 0 ? null : [...strips.slice(at), ...strips.slice(0, at).reverse()].map((strip) => strip.id);
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    const list = event.detail.target.matches(LISTS) && document.getElementById(event.detail.target.id);
    if (!list) return;
    for (const strip of all(LINES, list)) if (before.size && before.get(strip.id) !== strip.dataset.version) strip.classList.add("changed");
    if (!near || (document.activeElement && document.activeElement.closest(LISTS))) return;
    const strip = near.map((id) => document.getElementById(id)).find(Boolean);
    ((strip && find(LINKS, strip)) || find("#main")).focus({ preventScroll: true });
    near = null;
  });

  // --- what changes while an answer is under way is neither lost nor drawn over ---
  // Counted in the order in which it happened: requests sent, changes heard of, gestures answered.
  let order = 0, heardOfAt = 0, answeredAt = 0, isOwed = false, isWithheld = false;
  const sentAt = new WeakMap(), pressed = new Set();  // both by request; what is in `pressed` has no answer yet
  // What an answer said and the page did not take is asked again, once nothing that somebody pressed is under way.
  function withhold(event, isOlder = false) {
    event.detail.shouldSwap = false;
    isWithheld = true;
    if (isOlder || pressed.size) isOwed = true;
  }
  function settleUp() {
    if (!isOwed || pressed.size) return;
    isOwed = false;
    document.body.dispatchEvent(new Event("changed"));
  }
  document.body.addEventListener("changed", () => { heardOfAt = ++order; });
  document.body.addEventListener("htmx:beforeSend", (event) => {
    const { elt, xhr, requestConfig } = event.detail;
    sentAt.set(xhr, ++order);
    // Of the request itself, not of htmx: who sent it may be gone from the page by then, and its events with it.
    if (elt.hasAttribute("data-live-part")) { xhr.addEventListener("loadend", settleUp); return; }
    pressed.add(xhr);
    xhr.addEventListener("loadend", () => { pressed.delete(xhr); settleUp(); });
    // A look at the turn changes nothing.
    if (requestConfig.verb === "get" || ["preview", "input"].includes(requestConfig.triggeringEvent?.type)) return;
    xhr.addEventListener("readystatechange", () => {
      if (xhr.readyState !== 4) return;
      answeredAt = ++order;
      // What stands beside a part is not in its validator, and may be drawn anew now, without what blocks.
      shown.clear();
      if (find("#foot-news [data-blocks]")) isOwed = true;
    });
  });
  document.body.addEventListener("htmx:beforeOnLoad", () => { isWithheld = false; });
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const { requestConfig, shouldSwap, target, xhr } = event.detail;
    if (!shouldSwap || !requestConfig.elt.hasAttribute("data-live-part")) return;
    // Asked for before what somebody pressed was answered, it may tell of before.
    const isOlder = sentAt.get(xhr) < answeredAt;
    // What somebody pressed in the foot is on its way: its own answer says what became of it, and needs the place that it was sent from.
    const isInTheWay = target.id === "decision" && find(".htmx-request:not([data-live-part])", target);
    if (isOlder || isInTheWay) withhold(event, isOlder);
  });
  // A part that came with an answer was drawn before it could hear: a change in between is asked about.
  const HEARING = "[data-live-part][hx-trigger*='changed from:body']", hearing = new WeakSet(all(HEARING));
  document.body.addEventListener("htmx:afterSettle", (event) => {
    const fresh = all(HEARING).filter((part) => !hearing.has(part));
    for (const part of fresh) hearing.add(part);
    if (fresh.length && sentAt.get(event.detail.xhr) < heardOfAt) document.body.dispatchEvent(new Event("changed"));
  });

  // --- a proposal that moves on under its second person: what they typed stays, in its field or as what they typed ---
  let typedThere = null;
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.target.id !== "decision" || !event.detail.shouldSwap || !event.detail.requestConfig.elt.matches("[data-live-part]")) return;
    const fields = all("#second-reason, #glass-reason", event.detail.target).filter((field) => field.value.trim());
    typedThere = { texts: fields.map((field) => [field.id, field.value]), wasIn: event.detail.target.contains(document.activeElement) };
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    const section = typedThere && find("#decision");
    if (!section) return;
    for (const [id, text] of typedThere.texts) {
      const field = document.getElementById(id);
      if (field) { field.value = field.value || text; field.closest("details")?.setAttribute("open", ""); continue; }
      const kept = Object.assign(document.createElement("div"), { className: "kept" });
      kept.append(Object.assign(document.createElement("span"), { className: "label", textContent: "What you typed" }), Object.assign(document.createElement("p"), { textContent: text }));
      section.append(kept);
    }
    if (typedThere.wasIn && document.activeElement === document.body) section.focus({ preventScroll: true });
    typedThere = null;
  });
})();
