// Draws the interactive figures over the still ones, and lets rows be shown and hidden.
"use strict";
(() => {
  const views = new Map();
  let hidden = new Set();

  const shown = () =>
    [...document.querySelectorAll("fieldset.rows input")].filter((box) => box.checked).map((box) => box.value);

  async function draw(figure) {
    const source = figure.querySelector('script[type="application/json"]');
    const place = figure.querySelector(".live");
    const options = { actions: false, renderer: "svg", ast: true, hover: false };
    const made = await window.vegaEmbed(place, JSON.parse(source.textContent), options);
    const picture = place.querySelector("svg");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", figure.querySelector(".still").getAttribute("aria-label"));
    views.set(figure, made.view);
    figure.classList.add("drawn");
    name(figure);
    select(made.view);
    await made.view.runAsync();
  }

  // The slider's own label is not tied to it; and it keeps its place when a live page is renewed.
  function name(figure) {
    for (const slider of figure.querySelectorAll(".vega-bindings input")) {
      slider.setAttribute("aria-label", `round, ${figure.dataset.title}`);
      slider.id = `slider-${figure.id}`;
    }
  }

  function select(view) {
    try {
      view.signal("shown_rows", shown());
    } catch {
      // this figure shows no rows
    }
  }

  function toggled() {
    hidden = new Set(
      [...document.querySelectorAll("fieldset.rows input")].filter((box) => !box.checked).map((box) => box.value),
    );
    for (const line of document.querySelectorAll("[data-row]")) {
      line.hidden = hidden.has(line.dataset.row);
    }
    for (const view of views.values()) {
      select(view);
      view.runAsync();
    }
  }

  async function start() {
    for (const view of views.values()) view.finalize();
    views.clear();
    document.documentElement.classList.add("scripted");
    for (const box of document.querySelectorAll("fieldset.rows input")) {
      box.checked = !hidden.has(box.value);
      box.addEventListener("change", toggled);
    }
    toggled();
    for (const figure of document.querySelectorAll("figure[data-title]")) {
      try {
        await draw(figure);
      } catch (error) {
        console.error(`figure ${figure.id}:`, error);
      }
    }
    document.documentElement.dataset.drawn = String(views.size);
    document.dispatchEvent(new Event("report:drawn"));
  }

  // A link into a closed part opens it.
  function reveal() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const closed = target && target.closest("details");
    if (closed && !closed.open) {
      closed.open = true;
      target.scrollIntoView();
    }
  }

  // Paper cannot be opened further: where the numbers come from is printed in full.
  const opened = [];
  window.addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll(".origins details:not([open])")) {
      part.open = true;
      opened.push(part);
    }
  });
  window.addEventListener("afterprint", () => {
    while (opened.length) opened.pop().open = false;
  });

  window.addEventListener("hashchange", reveal);
  document.addEventListener("report:replaced", start);
  start().then(reveal);
})();
