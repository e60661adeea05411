// Keeps a served report up to date. A function of the version this page is, called once.
// Nothing moves by itself: no animation, no smooth scrolling. The page redraws its figures on
// `report:replaced`, and may say `report:drawn` when they are there.
(function (version) {
  "use strict";
  const EVERY = 2000, FINISHED = 10000, PATIENCE = 10000, HOLD = 2000;
  const CONTROLS = "input:not([type=hidden]):not([type=file]), select, textarea";
  const FOCUSABLE = `a[href], button, summary, [tabindex], ${CONTROLS}`;
  const BOXES = "div, section, figure, pre, nav, ul, ol, textarea";
  const main = document.getElementById("report");
  const touched = new Map();
  let timer = 0, asking = false, restoring = false;

  // --- messages ----------------------------------------------------------------------------

  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    #live-status { position: fixed; right: .5rem; bottom: .5rem; z-index: 10; margin: 0;
      padding: .15rem .6rem; border: 1px solid GrayText; border-radius: .4rem; background: Canvas;
      color: CanvasText; font: .85rem/1.4 system-ui, sans-serif; pointer-events: none; }
    #live-problem { margin: 0 0 1rem; padding: .5rem .8rem; border: 2px solid; background: Canvas;
      color: CanvasText; overflow-wrap: anywhere; }
    #live-problem[hidden] { display: none; }
    @media print { #live-status, #live-problem { display: none; } }`);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

  function speaker(id, place) {
    const element = document.createElement("p");
    element.id = id;
    element.setAttribute("role", "status");
    element.setAttribute("aria-live", "polite");
    place(element);
    return element;
  }
  const status = speaker("live-status", (element) => document.body.append(element));
  const problem = speaker("live-problem", (element) => main.before(element));
  problem.hidden = true;

  function say(element, text) {  // a text that stays the same is not read out again
    if (element.textContent !== text) element.textContent = text;
  }

  function sayFacts(facts) {
    const clock = new Date(facts.built).toLocaleTimeString([], {
      hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
    });
    const now = facts.state === "finished" ? "finished" : "live";
    say(status, facts.state === "waiting" ? "live, waiting" : `${now}, updated ${clock}`);
    problem.hidden = !facts.problem;
    say(problem, facts.problem ? `Not up to date: ${facts.problem}` : "");
  }

  // --- keeps what a reader has set -----------------------------------------------------------

  // Elements by a key that outlives them: what they are called and which one of that name.
  function keyed(selector) {
    const found = new Map(), counts = new Map();
    for (const element of main.querySelectorAll(selector)) {
      const name = [element.localName, element.id, element.name, label(element)].join(" ");
      counts.set(name, (counts.get(name) || 0) + 1);
      found.set(`${name} ${counts.get(name)}`, element);
    }
    return found;
  }

  function label(element) {
    if (ticked(element)) return element.value;
    if (element.id || element.matches(CONTROLS)) return "";
    const said = element.localName === "details" ? element.querySelector("summary") : element;
    const inside = element.matches(`details, ${FOCUSABLE}`) ? said?.textContent : element.className;
    return element.getAttribute("aria-label") || inside;
  }

  function ticked(element) {
    return ["checkbox", "radio"].includes(element.type);
  }

  function keyOf(element, selector) {
    for (const [key, other] of keyed(selector)) if (other === element) return key;
    return null;
  }

  function touch(event) {
    if (restoring || !event.target.matches(CONTROLS)) return;
    const group = event.target.type === "radio" ? event.target.name : "";
    for (const [key, element] of keyed(CONTROLS)) {
      if (element === event.target || (group && element.name === group)) {
        touched.set(key, { value: element.value, checked: element.checked });
      }
    }
  }

  function remember() {
    const kept = { details: new Map(), controls: new Map(touched), boxes: new Map(), focus: null };
    for (const [key, element] of keyed("details")) kept.details.set(key, element.open);
    for (const [key, element] of keyed(BOXES)) {
      if (element.scrollLeft || element.scrollTop) {
        kept.boxes.set(key, [element.scrollLeft, element.scrollTop]);
      }
    }
    const active = document.activeElement;
    if (main.contains(active)) {
      const text = ["text", "search"].includes(active.type) || active.localName === "textarea";
      const part = text ? [active.selectionStart, active.selectionEnd] : null;
      kept.focus = { key: keyOf(active, FOCUSABLE), part };
    }
    return kept;
  }

  // Restores what there is already; a figure may draw its controls a moment later.
  function restore(kept) {
    const take = (selector, wanted, use) => {
      if (!wanted.size) return;
      for (const [key, element] of keyed(selector)) {
        if (!wanted.has(key)) continue;
        use(element, wanted.get(key));
        wanted.delete(key);
      }
    };
    const changed = [];
    take("details", kept.details, (element, open) => { element.open = open; });
    take(CONTROLS, kept.controls, (element, { value, checked }) => {
      if (element.value === value && element.checked === checked) return;
      if (ticked(element)) element.checked = checked;
      else element.value = value;
      changed.push(element);
    });
    take(BOXES, kept.boxes, (element, [left, top]) => {
      element.scrollLeft = left;
      element.scrollTop = top;
    });
    if (kept.focus && [document.body, null].includes(document.activeElement)) {
      const element = keyed(FOCUSABLE).get(kept.focus.key);
      element?.focus({ preventScroll: true });
      if (element && kept.focus.part) element.setSelectionRange(...kept.focus.part);
      if (element) kept.focus = null;
    }
    return changed;
  }

  function announce(elements) {
    restoring = true;
    for (const element of elements) {
      element.dispatchEvent(new Event("input", { bubbles: true }));
      element.dispatchEvent(new Event("change", { bubbles: true }));
    }
    restoring = false;
  }

  // The named thing nearest to the top edge: what is read stays in its place when rows come above.
  function anchor() {
    let best = null;
    for (const element of main.querySelectorAll("[id]:not(svg *)")) {
      const { top, height } = element.getBoundingClientRect();
      if (height && !(best && Math.abs(best.top) <= Math.abs(top))) best = { id: element.id, top };
    }
    return best;
  }

  function scrollBack(there) {
    const again = there && document.getElementById(there.id);
    if (!again) return;
    const moved = again.getBoundingClientRect().top - there.top;
    window.scrollBy({ left: 0, top: moved, behavior: "instant" });
  }

  function replace(fresh) {
    const kept = remember(), there = anchor(), [x, y] = [window.scrollX, window.scrollY];
    main.style.minHeight = `${main.offsetHeight}px`;  // no jump while figures are redrawn
    main.replaceChildren(...fresh.getElementById("report").childNodes);
    document.title = fresh.title;
    const changed = restore(kept);
    document.dispatchEvent(new CustomEvent("report:replaced"));
    announce([...changed, ...restore(kept)]);
    window.scrollTo({ left: x, top: y, behavior: "instant" });
    if (y > 0) scrollBack(there);
    const rested = window.scrollY;
    const settle = () => {
      announce(restore(kept));
      main.style.minHeight = "";
      if (y > 0 && window.scrollY === rested) scrollBack(there);  // else the reader went on
    };
    document.addEventListener("report:drawn", settle, { once: true });
    window.setTimeout(settle, HOLD);
  }

  function busy() {  // a replacement would take away what the reader is at
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && main.contains(selection.anchorNode)) {
      return "new results are shown when no text is selected";
    }
    return main.querySelector("dialog[open]") ? "new results are shown when this is closed" : "";
  }

  // --- asking --------------------------------------------------------------------------------

  async function get(path) {
    const response = await fetch(path, {
      cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE),
    });
    if (response.status === 401) throw new Error("access was refused: open the address with its token again");
    if (!response.ok) throw new Error("connection lost, trying again");
    return response;
  }

  async function look() {
    const facts = await (await get("version")).json();
    if (facts.version !== version) {
      if (main.hasAttribute("data-waiting")) {
        window.location.reload();
        return facts;
      }
      const waits = busy();
      if (waits) {
        say(status, waits);
        return facts;
      }
      const response = await get("./");
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
      const next = fresh.getElementById("report");
      if (!next || next.hasAttribute("data-waiting")) {
        window.location.reload();
        return facts;
      }
      replace(fresh);
      version = (response.headers.get("ETag") || "").replaceAll('"', "");
    }
    sayFacts(facts);
    return facts;
  }

  async function poll() {
    window.clearTimeout(timer);
    if (asking || document.hidden) return;
    asking = true;
    let rest = EVERY;
    try {
      const facts = await look();
      if (facts.state === "finished") rest = FINISHED;
    } catch (error) {
      const known = error.message.startsWith("access") ? error.message : "";
      say(status, known || "connection lost, trying again");
    }
    asking = false;
    if (!document.hidden) timer = window.setTimeout(poll, rest);
  }

  main.addEventListener("input", touch);
  main.addEventListener("change", touch);
  document.addEventListener("visibilitychange", poll);
  poll();
})
